"""Reading CIFAR's pickles without running anything.

A pickle is a program. This reader lets it build dictionaries, lists, strings, numbers, and one-byte arrays by means of
its own; every other name that a file asks for is refused, so nothing from outside this page is ever called.
"""

import io
import pickle
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from holdfast.errors import DataError


class _ByteArray:
    """Stands in for a numpy array while its file is read."""

    def __init__(self, *_: object) -> None:
        self.value: np.ndarray[Any, np.dtype[np.uint8]] | None = None

    def __setstate__(self, state: object) -> None:
        if not (isinstance(state, tuple) and len(state) == 5):
            raise pickle.UnpicklingError("an array with a state of another form")
        _, shape, kind, column_major, content = state
        whole = isinstance(shape, tuple) and all(isinstance(size, int) and size >= 0 for size in shape)
        if not (whole and isinstance(kind, _ByteKind) and kind.is_byte and isinstance(content, bytes)):
            raise pickle.UnpicklingError("an array of something else than bytes")
        if column_major or int(np.prod(shape, dtype=object)) != len(content):
            raise pickle.UnpicklingError(f"an array of shape {shape} with {len(content)} bytes")
        self.value = np.frombuffer(content, np.uint8).reshape(shape)


class _ByteKind:
    """Stands in for a numpy dtype."""

    def __init__(self, name: object = None, *_: object) -> None:
        self.is_byte = name in (b"u1", "u1")

    def __setstate__(self, state: object) -> None:
        """Take byte order and alignment, which bytes do not have."""


def _encode(text: object, *_: object) -> bytes:
    """Stands in for ``_codecs.encode``, by which Python 3 writes bytes into old pickles."""
    if not isinstance(text, str):
        raise pickle.UnpicklingError("bytes made of something else than text")
    return text.encode("latin1")


class _Reader(pickle.Unpickler):
    # The names that CIFAR's files ask for, each with what they get instead.
    known: ClassVar[dict[tuple[str, str], Any]] = {
        ("numpy.core.multiarray", "_reconstruct"): _ByteArray,
        ("numpy._core.multiarray", "_reconstruct"): _ByteArray,
        ("numpy", "ndarray"): _ByteArray,
        ("numpy", "dtype"): _ByteKind,
        ("_codecs", "encode"): _encode,
    }

    def find_class(self, module: str, name: str) -> Any:
        """Return a stand-in, or refuse."""
        if (module, name) not in self.known:
            raise pickle.UnpicklingError(f"it asks for {module}.{name}")
        return self.known[module, name]


def read_byte_pickle(path: Path) -> dict[str, Any]:
    """Return the dictionary in a pickle of bytes, lists, strings and numbers, its keys as text."""
    content = path.read_bytes()
    try:
        found = _Reader(io.BytesIO(content), encoding="bytes").load()
    except Exception as error:  # a damaged pickle may fail in any way at all
        raise DataError(
            f"{path} is not one of CIFAR's files: {error}. Nothing in it was run. Download it again."
        ) from error
    if not isinstance(found, dict):
        raise DataError(f"{path} holds a {type(found).__name__}; expected one of CIFAR's files, a dictionary.")
    named = {key.decode("latin1") if isinstance(key, bytes) else key: value for key, value in found.items()}
    return {key: value.value if isinstance(value, _ByteArray) else value for key, value in named.items()}
