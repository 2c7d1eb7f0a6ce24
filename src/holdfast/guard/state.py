"""Turning what a Consolidator remembers into a state and back, with every check made before anything changes."""

from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from holdfast.errors import StateError
from holdfast.guard.memory import Memory
from holdfast.guard.state_files import VERSION
from holdfast.tensors.sharding import like_parameter
from holdfast.tensors.storage import Storage

if TYPE_CHECKING:
    from torch.distributed.checkpoint.metadata import Metadata


def to_state(memory: Memory) -> dict[str, Any]:
    """Return everything needed to go on exactly, as plain values and named tensors."""
    return {
        "version": VERSION,
        "strength": memory.strength,
        "decay": memory.decay,
        "driver": memory.driver,
        "measures": memory.settings,
        "tasks": memory.tasks,
        "steps": dict(memory.steps),
        "parameters": sorted(memory.parameters),
        "tensors": {f"{kind}/{name}": value for kind, kept in _groups(memory).items() for name, value in kept.items()},
    }


def from_state(memory: Memory, state: Mapping[str, Any]) -> None:
    """Take over a state, if it is whole and of this model and these measures."""
    _check_contents(memory, state)
    tensors: Mapping[str, Tensor] = state["tensors"]
    parameters = parameters_of(memory, tensors, state["parameters"])
    _check_names(parameters, state)
    taken: dict[str, dict[str, Tensor]] = {kind: {} for kind in _groups(memory)}
    places = {key: place_of(memory, parameters, key, tensor.shape) for key, tensor in tensors.items()}
    for key, (kind, name) in places.items():
        parameter = parameters[name]
        keep = _keeper(memory.storage, kind)
        taken[kind][name] = keep(like_parameter(tensors[key].detach(), parameter).clone(), parameter)
    memory.strength, memory.decay, memory.tasks = state["strength"], state["decay"], state["tasks"]
    memory.steps = dict(state["steps"])
    memory.anchor, memory.start = taken["anchor"], taken["start"]
    kept = memory.parameters.keys() | memory.anchor.keys() | memory.steps.keys()
    memory.parameters = {name: p for name, p in parameters.items() if name in kept}
    for label, ledger in memory.ledgers.items():
        ledger.settle(taken[f"total/{label}"])
        ledger.running = taken[f"running/{label}"]


def parameters_of(memory: Memory, keys: Iterable[str], names: Iterable[str] = ()) -> dict[str, nn.Parameter]:
    """Return the protected parameters, and those of a state that have been frozen since, by its tensors' keys."""
    return memory.parameters_with({*names, *(name for _, name in map(partial(_parts, memory), keys))})


def place_of(memory: Memory, parameters: Mapping[str, nn.Parameter], key: str, shape: torch.Size) -> tuple[str, str]:
    """Return what a tensor of a state is, and of which parameter, or refuse one that does not fit the model."""
    kind, name = _parts(memory, key)
    parameter = parameters.get(name)
    if parameter is None or parameter.shape != shape:
        has = "none of that name" if parameter is None else f"one of shape {tuple(parameter.shape)}"
        raise StateError(
            f"The state was made for another model: it holds a parameter {name!r} of shape {tuple(shape)}, and this "
            f"model has {has}. For a layer that was taken away on purpose, call forget({name!r}) before saving."
        )
    return kind, name


def _keeper(storage: Storage, kind: str) -> Callable[[Tensor, Tensor], Tensor]:
    """Return how tensors of this kind are kept."""
    if kind == "start":
        return storage.exact
    return storage.running if kind.startswith("running/") else storage.resting


def _parts(memory: Memory, key: str) -> tuple[str, str]:
    """Return what a tensor of a state is, and the name of its parameter."""
    kind = next((kind for kind in _groups(memory) if key.startswith(f"{kind}/")), None)
    if kind is None:
        raise StateError(f"The state holds {key!r}, which this version does not know.")
    return kind, key[len(kind) + 1 :]


def _groups(memory: Memory) -> dict[str, dict[str, Tensor]]:
    """Return the tensors of a memory by what they are."""
    groups = {"anchor": memory.anchor, "start": memory.start}
    for label, ledger in memory.ledgers.items():
        groups[f"total/{label}"] = ledger.total
        groups[f"running/{label}"] = ledger.running
    return groups


def _check_contents(memory: Memory, state: Mapping[str, Any]) -> None:
    if state.get("version") != VERSION:
        raise StateError(
            f"The state has version {state.get('version')!r}; this holdfast reads version {VERSION}. Use the holdfast "
            "that wrote it."
        )
    absent = {"strength", "decay", "driver", "measures", "tasks", "steps", "parameters", "tensors"} - set(state)
    if absent:
        raise StateError(f"The state lacks {sorted(absent)}: it is not whole. Use another copy.")
    if (state["driver"], state["measures"]) != (memory.driver, memory.settings):
        raise StateError(
            f"The state was made with {state['measures']}, driven by {state['driver']!r}; this Consolidator has "
            f"{memory.settings}, driven by {memory.driver!r}. Make one with the same measures and settings."
        )


def _check_names(parameters: Mapping[str, nn.Parameter], state: Mapping[str, Any]) -> None:
    missing = sorted(set(state["parameters"]) - set(parameters))
    if missing:
        raise StateError(
            f"The state protects {missing[0]!r}{f' and {len(missing) - 1} more' if missing[1:] else ''}, which this "
            "Consolidator does not: it was made for another model, or with another `protect`."
        )


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
