"""The digits of :mod:`anchorhold.digits` as a data set like the others."""

import torch

from anchorhold.digits import load_digits
from anchorhold.seeding import generator_for
from anchorhold_lab.data.images import Dataset, Images

_TEST_SHARE = 0.2


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
