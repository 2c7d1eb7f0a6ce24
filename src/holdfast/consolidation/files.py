"""Files of a Consolidator's state: safetensors, never pickles, and either whole or absent."""

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from holdfast.errors import StateError
from holdfast.files import read_tensors, write_tensors

VERSION = 1
"""The version of the state's layout."""

_KEY = "holdfast"


def write(path: str | os.PathLike[str], state: Mapping[str, Any]) -> None:
    """Write a state; an interruption leaves the old file or the new one."""
    rest = {key: value for key, value in state.items() if key != "tensors"}
    write_tensors(path, state["tensors"], {_KEY: json.dumps(rest)})


def read(path: str | os.PathLike[str]) -> dict[str, Any]:
    """Read a state, or say why the file holds none."""
    if not Path(path).is_file():
        raise StateError(f"There is no state file at {str(path)!r}. Give the path that save() wrote.")
    tensors, metadata = read_tensors(path)
    if _KEY not in metadata:
        raise StateError(f"{str(path)!r} is a safetensors file, but not one that a Consolidator wrote.")
    state: dict[str, Any] = json.loads(metadata[_KEY])
    state["tensors"] = tensors
    return state
