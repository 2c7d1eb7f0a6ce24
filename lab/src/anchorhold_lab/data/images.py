"""What every data set is once it has been read: images and labels, checked, and scaled for a network."""

import hashlib
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from anchorhold.errors import DataError

Bytes = npt.NDArray[np.uint8]


@dataclass(frozen=True)
class Images:
    """Pixels as ``[N, channels, height, width]`` bytes and a label for each."""

    pixels: Tensor
    labels: Tensor
    classes: int

    def __len__(self) -> int:
        return len(self.labels)

    def __repr__(self) -> str:
        return f"Images(pixels={tuple(self.pixels.shape)}, labels={tuple(self.labels.shape)}, classes={self.classes})"


@dataclass(frozen=True)
class Dataset:
    """A data set's training and test images."""

    name: str
    train: Images
    test: Images


def checked_images(pixels: Bytes, labels: Bytes, classes: int, digests: tuple[str, str], where: str) -> Images:
    """Return images whose content is the published one; whatever else a file holds is refused.

    Args:
        pixels: the images as bytes, in file order.
        labels: their labels.
        classes: how many classes there are.
        digests: the sha256 of the pixels and of the labels.
        where: the file or files that they came from, for the message.
    """
    for what, content, expected in (("images", pixels, digests[0]), ("labels", labels, digests[1])):
        found = hashlib.sha256(content.tobytes()).hexdigest()
        if found != expected:
            raise DataError(
                f"The {what} in {where} are not the published ones (sha256 {found[:12]}…, expected {expected[:12]}…): "
                "damaged, swapped with another file, or changed. Download them again."
            )
    return Images(torch.from_numpy(pixels.copy()), torch.from_numpy(labels.astype(np.int64)), classes)


def scaled(pixels: Tensor) -> Tensor:
    """Return pixels as floats from 0 to 1. The paper does nothing else to them, and so no augmentation."""
    return pixels.float() / 255
