"""The digits that come along are the published ones, and a data set like the others."""

import sklearn.datasets
import torch

from anchorhold.digits import load_digits
from anchorhold_lab.data import digits_dataset
from anchorhold_lab.scenarios import permuted, split


def test_the_digits_are_those_of_scikit_learn():
    images, labels = load_digits()
    original = sklearn.datasets.load_digits()
    assert torch.equal(images.double() * 16, torch.from_numpy(original.images))
    assert torch.equal(labels, torch.from_numpy(original.target).long())


def test_every_image_is_in_the_data_set_once():
    found = digits_dataset()
    assert (len(found.train), len(found.test)) == (1438, 359)
    assert found.train.pixels.shape[1:] == (1, 8, 8)
    assert found.train.pixels.dtype == torch.uint8
    original = sklearn.datasets.load_digits()
    expected = sorted(
        [*(round(v * 255 / 16) for v in image.ravel()), int(label)]
        for image, label in zip(original.images, original.target, strict=True)
    )
    ours = [
        [*pixels.flatten().tolist(), int(label)]
        for images in (found.train, found.test)
        for pixels, label in zip(images.pixels, images.labels, strict=True)
    ]
    assert sorted(ours) == expected


def test_the_split_is_always_the_same():
    """Results are compared between machines and versions, so it may never change."""
    assert digits_dataset().test.labels[:12].tolist() == [4, 0, 5, 0, 9, 7, 5, 1, 1, 3, 1, 7]


def test_scenarios_are_made_of_them():
    assert permuted(digits_dataset(), 3).input_shape == (64,)
    halves = split(digits_dataset(), 2, flat=True)
    assert (len(halves), halves.heads, halves.classes) == (5, 5, 2)


def test_a_data_set_is_printed_without_its_pixels():
    assert "train=Images(pixels=(1438, 1, 8, 8), labels=(1438,), classes=10)" in repr(digits_dataset())
