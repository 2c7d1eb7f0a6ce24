"""Files of a Consolidator's state: safetensors, never pickles, and either whole or absent.

A file has a checksum of all that it holds, by which a single changed bit is noticed. Those of the first version of the
layout, which holdfast 0.1.0 wrote, had none.
"""

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import Tensor

from holdfast.errors import StateError
from holdfast.guard.distributed.ranks import Ranks
from holdfast.tensors.sharding import is_sharded, whole
from holdfast.whole_files import content_digest, read_tensors, write_tensors

VERSION = 2
"""The version of the state's layout that is written."""
READABLE = (1, 2)
"""Those that are read."""

_KEY, _CHECKSUM = "holdfast", "sha256"
_WITHOUT_CHECKSUM = 1
"""The last version whose files have none."""


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
            here = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
            # In one text, since safetensors writes several in an order of chance, and equal states have equal files.
            sealed = {**rest, _CHECKSUM: content_digest(json.dumps(rest), here)}
            write_tensors(path, here, {_KEY: json.dumps(sealed)})

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
    if _KEY not in metadata:
        raise StateError(f"{str(path)!r} is a safetensors file, but not one that a Consolidator wrote.")
    state = _values(metadata[_KEY], path)
    if _CHECKSUM in state:
        expected = state.pop(_CHECKSUM)
        if content_digest(json.dumps(state), tensors) != expected:
            raise StateError(
                f"The content of {str(path)!r} does not match its checksum: it was damaged or changed since it was "
                "written. Use another copy."
            )
    elif state.get("version") != _WITHOUT_CHECKSUM:
        raise StateError(
            f"{str(path)!r} has no checksum, as every file of version {state.get('version')!r} has: it was damaged or "
            "changed since it was written. Use another copy."
        )
    state["tensors"] = tensors
    return state


def _values(text: str, path: str | os.PathLike[str]) -> dict[str, Any]:
    """Return the values beside a file's tensors."""
    try:
        found = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise StateError(
            f"{str(path)!r} is damaged: what it says beside its tensors cannot be read ({error}). Use another copy."
        ) from error
    if not isinstance(found, dict):
        raise StateError(
            f"{str(path)!r} is damaged: beside its tensors it holds a {type(found).__name__}; expected names with "
            "their values. Use another copy."
        )
    return found
