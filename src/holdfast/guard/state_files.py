"""Files of a Consolidator's state: safetensors, never pickles, and either whole or absent."""

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import Tensor

from holdfast.errors import StateError
from holdfast.guard.distributed.ranks import Ranks
from holdfast.tensors.sharding import is_sharded, whole
from holdfast.whole_files import read_tensors, write_tensors

VERSION = 1
"""The version of the state's layout."""

_KEY = "holdfast"


def write(path: str | os.PathLike[str], state: Mapping[str, Any], ranks: Ranks) -> None:
    """Write a state, by the first of the ranks; an interruption leaves the old file or the new one.

    Every rank has the whole state, unless it is sharded: only then must all of them take part.
    """
    rest = {key: value for key, value in state.items() if key != "tensors"}
    tensors = _gathered(state["tensors"], keep=ranks.rank == 0)

    def write_first() -> None:
        if ranks.rank == 0:
            folder = Path(path).parent
            if not folder.is_dir():
                raise StateError(
                    f"There is no folder {str(folder)!r}, so no state was written to {str(path)!r}. Make the folder "
                    "first."
                )
            write_tensors(path, tensors, {_KEY: json.dumps(rest)})

    if any(map(is_sharded, state["tensors"].values())):
        ranks.each(write_first)
    else:
        write_first()


def _gathered(tensors: Mapping[str, Tensor], *, keep: bool) -> dict[str, Tensor]:
    """Return tensors whole, the sharded ones in the CPU's memory, and those that are not kept not at all."""
    gathered = {}
    for name, tensor in tensors.items():
        full = whole(tensor)
        if keep:
            gathered[name] = full.cpu() if is_sharded(tensor) else tensor
    return gathered


def read(path: str | os.PathLike[str]) -> dict[str, Any]:
    """Read a state, or say why the file holds none."""
    if not Path(path).is_file():
        raise StateError(f"There is no state file at {str(path)!r}. Give the path that save() wrote.")
    tensors, metadata = read_tensors(path)
    state = read_settings(path, metadata)
    state["tensors"] = tensors
    return state


def read_settings(path: str | os.PathLike[str], metadata: Mapping[str, str]) -> dict[str, Any]:
    """Return all of a state but its tensors, given the text of its file."""
    if _KEY not in metadata:
        raise StateError(f"{str(path)!r} is a safetensors file, but not one that a Consolidator wrote.")
    found: dict[str, Any] = json.loads(metadata[_KEY])
    return found
