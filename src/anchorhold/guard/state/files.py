"""Files of a Guard's state: safetensors, never pickles, whole or absent; and checkpoints of torch.distributed.

A file has a checksum of all its content, by which a single changed bit is noticed. Files of the first version, which
anchorhold 0.1.0 wrote, have none.
"""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from anchorhold.errors import ConfigurationError, StateError
from anchorhold.guard.core import Core
from anchorhold.guard.distributed.ranks import Ranks
from anchorhold.guard.state.microbatches import WATCHED
from anchorhold.guard.state.schema import parameters_of, place_in_model
from anchorhold.tensors.sharding import is_sharded, whole
from anchorhold.whole_files import read_tensors, sealed, unsealed, write_tensors

if TYPE_CHECKING:
    from torch.distributed.checkpoint.metadata import Metadata

_KEY = "holdfast"
"""The key of the values in the file's metadata: the library's name when the first files were written."""
_WITHOUT_CHECKSUM = 1
"""The last version whose files have no checksum."""


def write(path: str | os.PathLike[str], state: Mapping[str, Any], ranks: Ranks) -> None:
    """Write a state into a file, on the first rank; an interruption leaves the old file or the new one.

    All ranks have to call it where tensors are sharded. Raise StateError if there is no folder for the file.
    """
    if not isinstance(path, str | os.PathLike):
        raise ConfigurationError(
            f"save({type(path).__name__}): expected a path, as in guard.save('guard.safetensors')."
        )
    values = {key: value for key, value in state.items() if key != "tensors"}
    place = Path(path)
    tensors: dict[str, Tensor] = {}
    for name, tensor in state["tensors"].items():
        full = whole(tensor)  # every rank takes part, and the first alone keeps it
        if ranks.rank == 0:
            tensors[name] = full.cpu() if is_sharded(tensor) else tensor

    def write_first() -> None:
        if ranks.rank != 0:
            return
        if not place.parent.is_dir():
            raise StateError(
                f"There is no folder {str(place.parent)!r}, so no state was written to {str(place)!r}. Make the folder "
                "first."
            )
        if place.is_dir():
            raise StateError(
                f"{str(place)!r} is a folder, so no state was written; expected the path of a file, such as "
                f"{str(place / 'guard.safetensors')!r}."
            )
        here = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
        write_tensors(place, here, {_KEY: sealed(values, here)})

    if any(map(is_sharded, state["tensors"].values())):
        ranks.each(write_first)
    else:
        write_first()


def refuse_without_guard(guard: object, path: object) -> None:
    """Raise ConfigurationError for ``Guard.load(path)``, which is called on the class."""
    if isinstance(guard, str | os.PathLike) and path is None:
        raise ConfigurationError(
            f"Guard.load({str(guard)!r}) of no guard: a file has no model. Make the guard as it was made, "
            f"guard = Guard(model, ...), and then guard.load({str(guard)!r})."
        )


def read(path: str | os.PathLike[str] | None) -> dict[str, Any]:
    """Return the state in a file. Raise StateError if there is no such file, it is damaged, or no guard wrote it."""
    if not isinstance(path, str | os.PathLike):
        instead = " A state itself is for load_state_dict()." if isinstance(path, Mapping) else ""
        raise ConfigurationError(
            f"load({type(path).__name__}): expected the path of a file that save() wrote, such as "
            f"guard.load('guard.safetensors').{instead}"
        )
    if not Path(path).is_file():
        raise StateError(f"There is no state file at {str(path)!r}. Give the path that save() wrote.")
    tensors, metadata = read_tensors(path)
    return {**state_of(path, tensors, metadata), "tensors": tensors}


def state_of(
    path: str | os.PathLike[str], tensors: Mapping[str, Tensor], metadata: Mapping[str, str]
) -> dict[str, Any]:
    """Return a file's values, after comparing its checksum with these and the tensors, one after the other.

    Raise StateError if they differ, or if no guard wrote the file.
    """
    if _KEY not in metadata:
        raise StateError(f"{str(path)!r} is a safetensors file, but not one that a Guard wrote.")
    state, has_checksum = unsealed(metadata[_KEY], tensors, path)
    if not has_checksum and state.get("version") != _WITHOUT_CHECKSUM:
        raise StateError(
            f"{str(path)!r} has no checksum, as every file of version {state.get('version')!r} has: it was damaged or "
            "changed since it was written. Use another copy."
        )
    return state


def blank_state(core: Core, metadata: "Metadata", prefix: str) -> dict[str, Any]:
    """Return a state for ``torch.distributed.checkpoint`` to fill: it reads into tensors that are there already.

    Raise StateError if the checkpoint holds no state of a Guard under the prefix.
    """
    from torch.distributed.checkpoint.metadata import TensorStorageMetadata  # noqa: PLC0415 (not in every build)

    under = tuple(prefix.split(".")) if prefix else ()
    kept = {
        key: path[len(under) :]
        for key, path in (metadata.planner_data or {}).items()
        if path[: len(under)] == under and key in metadata.state_dict_metadata
    }
    if ("version",) not in kept.values():
        there = ", ".join(sorted({str(path[0]) for path in (metadata.planner_data or {}).values()}))
        raise StateError(
            f"The checkpoint holds no state of a Guard under {prefix!r}; it has {there or 'nothing'}. "
            "Give the key that guard.state_dict() was saved by as prefix."
        )
    tensors = [str(path[-1]) for path in kept.values() if path[0] == "tensors"]
    parameters = parameters_of(core, tensors)
    # A checkpoint has no place for empty mappings, such as the settings of a hold that has none.
    state: dict[str, Any] = {"steps": {}, "tensors": {}}
    bare: dict[str, Any] = {hold.name: {} for hold in core.options.holds if not hold.settings()}
    if bare:
        state["holds"] = bare
    for key, path in kept.items():
        stored = metadata.state_dict_metadata[key]
        value = None
        if isinstance(stored, TensorStorageMetadata):
            place = place_in_model(core, parameters, str(path[-1]), stored.size)
            like, dtype = parameters.get(place.name), stored.properties.dtype
            if like is not None and like.shape == stored.size and (place.prefix == WATCHED or not place.part):
                value = torch.empty_like(like, dtype=dtype, requires_grad=False)
            else:
                value = torch.empty(stored.size, dtype=dtype, device=next(iter(parameters.values())).device)
        inner = state
        for part in path[:-1]:
            inner = inner.setdefault(part, {})
        inner[path[-1]] = value
    return state
