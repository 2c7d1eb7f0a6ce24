"""A state with nothing filled in yet, for checkpoints of ``torch.distributed.checkpoint`` to be read into."""

from typing import TYPE_CHECKING, Any

import torch

from anchorhold.errors import StateError
from anchorhold.guard.core import Core
from anchorhold.guard.state.microbatches import WATCHED
from anchorhold.guard.state.places import parameters_of, place_of

if TYPE_CHECKING:
    from torch.distributed.checkpoint.metadata import Metadata


def blank_state(core: Core, metadata: "Metadata", prefix: str) -> dict[str, Any]:
    """Return a state like the one in a checkpoint of ``torch.distributed.checkpoint``, with nothing filled in yet.

    That reads into tensors which are already there, of this model's layout.
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
            place = place_of(core, parameters, str(path[-1]), stored.size)
            like, dtype = parameters.get(place.name), stored.properties.dtype
            if like is not None and like.shape == stored.size and (place.kind == WATCHED or not place.part):
                value = torch.empty_like(like, dtype=dtype, requires_grad=False)
            else:
                value = torch.empty(stored.size, dtype=dtype, device=next(iter(parameters.values())).device)
        inner = state
        for part in path[:-1]:
            inner = inner.setdefault(part, {})
        inner[path[-1]] = value
    return state
