"""Files of a Consolidator's state: safetensors, never pickles, and either whole or absent."""

import contextlib
import json
import os
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open
from safetensors.torch import save

from holdfast.errors import StateError

VERSION = 1
"""The version of the state's layout."""

_KEY = "holdfast"


def write(path: str | os.PathLike[str], state: Mapping[str, Any]) -> None:
    """Write a state aside and move it into place, so that an interruption leaves the old file or the new one."""
    target = Path(path)
    tensors = {name: tensor.detach().cpu().contiguous().clone() for name, tensor in state["tensors"].items()}
    rest = {key: value for key, value in state.items() if key != "tensors"}
    content = save(tensors, metadata={_KEY: json.dumps(rest)})
    descriptor, aside = tempfile.mkstemp(dir=target.parent, prefix=f".{target.name}.")
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        Path(aside).replace(target)
    except BaseException:
        with contextlib.suppress(FileNotFoundError):
            Path(aside).unlink()
        raise
    folder = os.open(target.parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


def read(path: str | os.PathLike[str]) -> dict[str, Any]:
    """Read a state, or say why the file holds none."""
    if not Path(path).is_file():
        raise StateError(f"There is no state file at {str(path)!r}. Give the path that save() wrote.")
    try:
        with safe_open(path, framework="pt") as file:
            metadata = file.metadata() or {}
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 (not a mapping)
    except SafetensorError as error:
        raise StateError(
            f"{str(path)!r} is not a whole safetensors file ({error}): truncated, or something else. Use another copy."
        ) from error
    if _KEY not in metadata:
        raise StateError(f"{str(path)!r} is a safetensors file, but not one that a Consolidator wrote.")
    state: dict[str, Any] = json.loads(metadata[_KEY])
    state["tensors"] = tensors
    return state
