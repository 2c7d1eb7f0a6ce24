import sklearn.datasets
import torch

from holdfast.data import load_digits


def test_the_digits_are_those_of_scikit_learn():
    images, labels = load_digits()
    original = sklearn.datasets.load_digits()
    assert torch.equal(images.double() * 16, torch.from_numpy(original.images))
    assert torch.equal(labels, torch.from_numpy(original.target).long())
