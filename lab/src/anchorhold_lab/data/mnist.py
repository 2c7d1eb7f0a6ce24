"""MNIST, from the gzipped idx files of its authors."""

import gzip
import math
import struct
import zlib
from pathlib import Path

import numpy as np

from anchorhold.errors import DataError
from anchorhold_lab.data.images import Bytes, Dataset, Images, checked_images

FOLDER = "MNIST/raw"
DIGESTS = {
    "train": (
        "741c988805d008ac6e4c904b69001ba184c24b2c540a4ef403f4c71b676cf757",
        "1feba77c54802fa5339a11837ea4b2866434b83314ec45192930f1df69120c13",
    ),
    "t10k": (
        "6d87418db22cc8025d05968bec9bd5c3932904b23485740db143a061a2c9d161",
        "ddeff807876a9661a1110d45c266c86239a3a1b7d37da0c3716a7a683c852ff5",
    ),
}
_UNSIGNED_BYTE = 8
_LARGEST = 2**28
"""No idx file of this data set unpacks to more bytes; a larger one is refused before it fills the memory."""


def read_mnist(folder: Path) -> Dataset:
    """Return MNIST from a data folder that holds ``MNIST/raw/*.gz``."""
    return Dataset("MNIST", _read_split(folder / FOLDER, "train"), _read_split(folder / FOLDER, "t10k"))


def _read_split(folder: Path, split: str) -> Images:
    pixels = read_idx(folder / f"{split}-images-idx3-ubyte.gz", dimensions=3)
    labels = read_idx(folder / f"{split}-labels-idx1-ubyte.gz", dimensions=1)
    return checked_images(pixels[:, None], labels, 10, DIGESTS[split], f"{folder}/{split}-*")


def read_idx(path: Path, dimensions: int) -> Bytes:
    """Return the array of an idx file of unsigned bytes, gzipped.

    The file starts with two zeros, the type and the number of dimensions, then each dimension's length as a
    big-endian integer.
    """
    header = 4 + 4 * dimensions
    try:
        with gzip.open(path, "rb") as file:
            start = file.read(header)
            if len(start) < header or start[:4] != bytes((0, 0, _UNSIGNED_BYTE, dimensions)):
                raise DataError(
                    f"{path} starts with {start[:4].hex(' ')!r}; expected an idx file of unsigned bytes with "
                    f"{dimensions} dimensions. Another file may have been put in its place."
                )
            shape = struct.unpack(f">{dimensions}I", start[4:])
            size = math.prod(shape)  # which no fixed number of bits holds
            content = file.read(min(size, _LARGEST) + 1)
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise DataError(f"{path} is not a whole gzip file ({error}). Download it again.") from error
    if len(content) != size or not size:
        more = "more than " if len(content) > min(size, _LARGEST) else ""
        raise DataError(
            f"{path} holds {more}{len(content) - bool(more)} bytes of data for a shape {shape}: truncated or changed."
        )
    return np.frombuffer(content, np.uint8).reshape(shape)
