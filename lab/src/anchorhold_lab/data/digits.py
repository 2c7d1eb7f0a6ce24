"""The 8×8 handwritten digits of the UCI repository's test set, as scikit-learn ships them: 1797 images, 10 classes.

E. Alpaydin and C. Kaynak, Optical Recognition of Handwritten Digits, UCI Machine Learning Repository, 1998 (CC BY 4.0).
Small enough to travel with the package, so that everything can be tried without a download.
"""

from importlib.resources import files

import numpy as np
import torch
from torch import Tensor

from anchorhold_lab.data.images import Dataset, Images
from anchorhold.seeding import generator_for

_BRIGHTEST = 16
_TEST_SHARE = 0.2


def load_digits() -> tuple[Tensor, Tensor]:
    """Return the images as ``[1797, 8, 8]`` floats from 0 to 1, and their labels."""
    with (files("anchorhold_lab.data") / "digits.npz").open("rb") as file, np.load(file, allow_pickle=False) as archive:
        images, labels = archive["images"], archive["labels"]
    return torch.from_numpy(images).float() / _BRIGHTEST, torch.from_numpy(labels).long()


def digits_dataset() -> Dataset:
    """Return the digits as a data set like the others: bytes from 0 to 255, every fifth image for testing.

    Which images those are is fixed, so that results can be compared.
    """
    images, labels = load_digits()
    pixels = (images * 255).round().to(torch.uint8)[:, None]
    shuffled = torch.randperm(len(labels), generator=generator_for(0, "digits"))
    tested = round(_TEST_SHARE * len(labels))
    test, train = shuffled[:tested], shuffled[tested:]
    return Dataset("digits", Images(pixels[train], labels[train], 10), Images(pixels[test], labels[test], 10))
