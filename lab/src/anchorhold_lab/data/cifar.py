"""CIFAR-10 and CIFAR-100, from the binary files of their author, or from his Python pickles."""

import pickletools
from pathlib import Path

import numpy as np

from anchorhold.errors import DataError, shortened
from anchorhold_lab.data.images import Bytes, Dataset, Images, checked_images

FOLDER_10, PICKLES_10 = "cifar-10-batches-bin", "cifar-10-batches-py"
FOLDER_100, PICKLES_100 = "cifar-100-binary", "cifar-100-python"
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
_LARGEST = 2**28
"""No file of CIFAR is longer: its largest has 155 million bytes."""
_IN_A_LIST = {"EMPTY_LIST", "MARK", "BINPUT", "LONG_BINPUT", "MEMOIZE", "APPEND", "APPENDS"}
"""The opcodes of a pickle that may stand between the numbers of a list."""


def read_cifar10(folder: Path) -> Dataset:
    """Return CIFAR-10 from a data folder with ``cifar-10-batches-bin/`` or, without it, ``cifar-10-batches-py/``."""
    files = {"train": [f"data_batch_{i}" for i in range(1, 6)], "test": ["test_batch"]}
    paths = {split: _paths(folder, FOLDER_10, PICKLES_10, names) for split, names in files.items()}
    return Dataset("CIFAR-10", **{split: _read(paths[split], 10, DIGESTS_10[split]) for split in paths})


def read_cifar100(folder: Path) -> Dataset:
    """Return CIFAR-100 by its fine labels, from a folder with ``cifar-100-binary/`` or ``cifar-100-python/``."""
    paths = {split: _paths(folder, FOLDER_100, PICKLES_100, [split]) for split in ("train", "test")}
    return Dataset("CIFAR-100", **{split: _read(paths[split], 100, DIGESTS_100[split]) for split in paths})


def _paths(folder: Path, binary: str, pickles: str, names: list[str]) -> list[Path]:
    paths = [folder / binary / f"{name}.bin" for name in names]
    others = [folder / pickles / name for name in names]
    return others if others[0].exists() and not paths[0].exists() else paths


def _read(paths: list[Path], classes: int, digests: tuple[str, str]) -> Images:
    """Return the images of some files, one after another."""
    parts = [(_read_records if path.suffix == ".bin" else _read_pickle)(path, classes) for path in paths]
    pixels = np.concatenate([part[0] for part in parts])
    labels = np.concatenate([part[1] for part in parts])
    where = str(paths[0]) + (f" to {paths[-1].name}" if paths[1:] else "")
    return checked_images(pixels, labels, classes, digests, where)


def _read_records(path: Path, classes: int) -> tuple[Bytes, Bytes]:
    """Return pixels and labels of records: one byte of label, or two in CIFAR-100 (coarse, fine), and then pixels."""
    content, length = _content(path), _PIXELS + (1 if classes == 10 else 2)
    if not content or len(content) % length:
        raise DataError(
            f"{path} has {len(content)} bytes; expected a multiple of {length}, as CIFAR-{classes}'s images take. "
            "Download it again."
        )
    records = np.frombuffer(content, np.uint8).reshape(-1, length)
    return records[:, -_PIXELS:].reshape(-1, 3, 32, 32), records[:, -_PIXELS - 1]


def _read_pickle(path: Path, classes: int) -> tuple[Bytes, Bytes]:
    """Return pixels and labels of a pickle, which is listed and not run, since a pickle may run anything.

    Its pixels are the one text as long as images are, its labels the list of numbers that follows their name. Whether
    these are the right ones, the published digests tell, so it does not matter what else a copy holds.
    """
    key = "labels" if classes == 10 else "fine_labels"
    pixels, labels, at_labels = b"", bytearray(), False
    try:
        for opcode, argument, _ in pickletools.genops(_content(path)):
            if isinstance(argument, str | bytes | bytearray):
                text = argument.encode("latin1", "replace") if isinstance(argument, str) else bytes(argument)
                pixels = text if text and len(text) % _PIXELS == 0 else pixels
                at_labels = text == key.encode() or (at_labels and not labels)
            elif at_labels and opcode.name == "BININT1" and argument is not None:
                labels.append(argument)
            elif labels and opcode.name not in _IN_A_LIST:
                at_labels = False
    except ValueError as error:
        raise DataError(
            f"{path} is not one of CIFAR's files: {shortened(str(error))}. Nothing in it was run. "
            f"`anchorhold-lab data fetch CIFAR-{classes}` gets the binary version, which is read in its place."
        ) from error
    if not pixels or not labels:
        raise DataError(f"{path} has no images or no {key!r}; expected one of the files of CIFAR-{classes}.")
    return np.frombuffer(pixels, np.uint8).reshape(-1, 3, 32, 32), np.frombuffer(labels, np.uint8)


def _content(path: Path) -> bytes:
    if path.stat().st_size > _LARGEST:
        raise DataError(f"{path} has more than {_LARGEST} bytes; expected one of CIFAR's files. Download it again.")
    return path.read_bytes()
