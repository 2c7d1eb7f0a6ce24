"""CIFAR-10 and CIFAR-100, from the Python pickles of their author."""

from pathlib import Path
from typing import Any

import numpy as np

from anchorhold.errors import DataError
from anchorhold_lab.data.images import Bytes, Dataset, Images, checked_images
from anchorhold_lab.data.unpickling import read_byte_pickle

FOLDER_10 = "cifar-10-batches-py"
FOLDER_100 = "cifar-100-python"
DIGESTS_10 = {
    "train": (
        "9d5c2eddadb0deff02c14c350c0385aab7b1d5ff1edfeb4997c8dc8644960111",
        "2b7cd2f24487317614016b72ffd53071c3062f592f0eb300c18a770d41ae1253",
    ),
    "test": (
        "177777c33ba79825320efa646ad04a94bdc3c80e4ebe3bd21724f8cdfd4b9d56",
        "cec8a24a1e92aa2ecaa0bbd3dbfa86bf6cd8759fbd209a832824c8cf0afca9d5",
    ),
}
DIGESTS_100 = {
    "train": (
        "de64658905c6b161606e3649ddafce7cf86c7634a0cf9116d518e64ef46a33c5",
        "9f11b9f97aad759ba6df0a33e3218b01d8deaf4ed3a14aa1185d69b9ad7ebcb3",
    ),
    "test": (
        "83c56492b2c11211ad1bb2dbd4f2eef4170a0441e41a41f3039c3144b1f5a511",
        "4dad7d09c7c97d33f6cb928d705cf4196221316fd6e31bdd978a08ed9103ee0b",
    ),
}
_PIXELS = 3 * 32 * 32


def read_cifar10(folder: Path) -> Dataset:
    """Return CIFAR-10 from a data folder that holds ``cifar-10-batches-py/``."""
    files = {
        "train": [folder / FOLDER_10 / f"data_batch_{i}" for i in range(1, 6)],
        "test": [folder / FOLDER_10 / "test_batch"],
    }
    splits = {split: _read(paths, "labels", 10, DIGESTS_10[split]) for split, paths in files.items()}
    return Dataset("CIFAR-10", **splits)


def read_cifar100(folder: Path) -> Dataset:
    """Return CIFAR-100, with its 100 fine labels, from a data folder that holds ``cifar-100-python/``."""
    splits = {
        split: _read([folder / FOLDER_100 / split], "fine_labels", 100, DIGESTS_100[split])
        for split in ("train", "test")
    }
    return Dataset("CIFAR-100", **splits)


def _read(paths: list[Path], label_key: str, classes: int, digests: tuple[str, str]) -> Images:
    """Return the images of some files, one after another."""
    parts = [_read_file(path, label_key, classes) for path in paths]
    pixels = np.concatenate([part[0] for part in parts])
    labels = np.concatenate([part[1] for part in parts])
    where = str(paths[0]) + (f" to {paths[-1].name}" if paths[1:] else "")
    return checked_images(pixels.reshape(-1, 3, 32, 32), labels, classes, digests, where)


def _read_file(path: Path, label_key: str, classes: int) -> tuple[Bytes, Bytes]:
    content: dict[str, Any] = read_byte_pickle(path)
    pixels, labels = content.get("data"), content.get(label_key)
    if not isinstance(pixels, np.ndarray) or pixels.ndim != 2 or pixels.shape[1] != _PIXELS:
        raise DataError(f"{path} has no 'data' of {_PIXELS} bytes an image; expected one of CIFAR's files.")
    if not isinstance(labels, list) or len(labels) != len(pixels):
        raise DataError(f"{path} has no {label_key!r} for its {len(pixels)} images; is it from the other CIFAR?")
    if not all(isinstance(label, int) and 0 <= label < classes for label in labels):
        raise DataError(f"{path} has labels outside 0..{classes - 1}; expected one of CIFAR's files.")
    return pixels, np.array(labels, np.uint8)
