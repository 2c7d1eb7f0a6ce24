"""Nested states in one safetensors file: dicts, lists, tuples, tensors, numbers, strings, never a pickle.

The tensors are stored by number, and the file's metadata holds the structure that names them together with a checksum
over all of it, so that a single changed byte is noticed.
"""

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from safetensors import SafetensorError
from safetensors.torch import load
from torch import Tensor

from anchorhold.errors import StateError
from anchorhold.whole_files import content_digest, read_tensors, write_tensors

_STRUCTURE, _CHECKSUM = "structure", "sha256"


@dataclass(frozen=True)
class Flattened:
    """A state as text and numbered tensors, all of them in main memory."""

    structure: str
    tensors: dict[str, Tensor]

    @classmethod
    def of(cls, state: Any) -> "Flattened":
        """Return a state flattened; it shares memory with the state's tensors where they are in main memory already."""
        tensors: dict[str, Tensor] = {}
        return cls(json.dumps(_flatten(state, tensors)), tensors)

    @property
    def digest(self) -> str:
        """A sha256 over everything."""
        return content_digest(self.structure, self.tensors)

    def write(self, path: str | os.PathLike[str]) -> None:
        """Write the state, whole or not at all."""
        write_tensors(path, self.tensors, {_STRUCTURE: self.structure, _CHECKSUM: self.digest})


def read_nested(path: str | os.PathLike[str]) -> Any:
    """Return the state in a file, exactly as it was written; refuse a file in which anything has changed."""
    return _nested(*read_tensors(path), path)


def nested_in(content: bytes, path: str | os.PathLike[str]) -> Any:
    """Return the state in what a file holds, of which a path says where it is from."""
    try:
        size = int.from_bytes(content[:8], "little")
        return _nested(load(content), json.loads(content[8 : 8 + size]).get("__metadata__", {}), path)
    except (SafetensorError, AttributeError, KeyError, TypeError, ValueError, RuntimeError) as error:
        if isinstance(error, StateError):
            raise
        raise StateError(f"{str(path)!r} is not a whole safetensors file ({error}).") from error


def _nested(tensors: dict[str, Tensor], metadata: Mapping[str, str], path: str | os.PathLike[str]) -> Any:
    """Return the state in a file's tensors and metadata."""
    if _STRUCTURE not in metadata or _CHECKSUM not in metadata:
        raise StateError(f"{str(path)!r} is a safetensors file, but not one that holds a nested state.")
    structure = metadata[_STRUCTURE]
    if Flattened(structure, tensors).digest != metadata[_CHECKSUM]:
        raise StateError(
            f"The content of {str(path)!r} does not match its checksum: it was damaged since it was written."
        )
    try:
        return _rebuild(json.loads(structure), tensors)
    except (ValueError, LookupError, TypeError, RecursionError) as error:  # written so, with a checksum that fits
        raise StateError(f"{str(path)!r} holds no nested state ({type(error).__name__}: {error}).") from error


def _flatten(value: Any, tensors: dict[str, Tensor]) -> Any:
    """Return a value as JSON, with its tensors moved to ``tensors``. Python's JSON keeps floats exactly, NaN too."""
    match value:
        case None | bool() | int() | float() | str():
            return value
        case Tensor():
            name = str(len(tensors))
            tensors[name] = value.detach().cpu().contiguous()
            return {"tensor": name}
        case list():
            return [_flatten(inner, tensors) for inner in value]
        case tuple():
            return {"tuple": [_flatten(inner, tensors) for inner in value]}
        case dict() if all(type(key) in (str, int) for key in value):
            # As pairs, because JSON would turn number keys into strings.
            return {"dict": [[key, _flatten(inner, tensors)] for key, inner in value.items()]}
    raise StateError(
        f"A state may hold dicts with text or whole numbers as keys, lists, tuples, tensors, numbers, text and None; "
        f"got a {type(value).__name__}."
    )


def _rebuild(value: Any, tensors: dict[str, Tensor]) -> Any:
    match value:
        case list():
            return [_rebuild(inner, tensors) for inner in value]
        case {"tensor": str(name)}:
            return tensors[name]
        case {"tuple": list(inner)}:
            return tuple(_rebuild(each, tensors) for each in inner)
        case {"dict": list(pairs)}:
            return {key: _rebuild(inner, tensors) for key, inner in pairs}
    return value
