"""Reading a state from a checkpoint of ``torch.distributed.checkpoint``, which fills tensors that are already there."""

from typing import TYPE_CHECKING, Any

import torch

from holdfast.consolidation.memory import Memory
from holdfast.consolidation.state import parameters_of, place_of
from holdfast.errors import StateError

if TYPE_CHECKING:
    from torch.distributed.checkpoint.metadata import Metadata


def blank_state(memory: Memory, metadata: "Metadata", prefix: str) -> dict[str, Any]:
    """Return a state like the one in a checkpoint, of this model's layout, with nothing filled in yet."""
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
            f"The checkpoint holds no state of a Consolidator under {prefix!r}; it has {there or 'nothing'}. "
            "Give the key that guard.state_dict() was saved by as prefix."
        )
    tensors = [str(path[-1]) for path in kept.values() if path[0] == "tensors"]
    parameters = parameters_of(memory, tensors)
    # A checkpoint has no place for empty mappings.
    state: dict[str, Any] = {"steps": {}, "tensors": {}}
    for key, path in kept.items():
        stored = metadata.state_dict_metadata[key]
        value = None
        if isinstance(stored, TensorStorageMetadata):
            _, name = place_of(memory, parameters, str(path[-1]), stored.size)
            value = torch.empty_like(parameters[name], dtype=stored.properties.dtype, requires_grad=False)
        inner = state
        for part in path[:-1]:
            inner = inner.setdefault(part, {})
        inner[path[-1]] = value
    return state
