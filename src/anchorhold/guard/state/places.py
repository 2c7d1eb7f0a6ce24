"""Which tensor of a state is what, by the key that it has there.

Its tensors are ``anchor/NAME``, ``start/NAME``, ``total/MEASURE/NAME`` and ``running/MEASURE/NAME``. A measure of
several running states has ``running.STATE/MEASURE/NAME``, a form of several tensors ``total/MEASURE/BLOCK#TENSOR``, a
hold that is not centred at its anchor ``tilt/NAME``, and further holds have ``hold/HOLD/TENSOR``. Adapters that are
held by merged weights have what they added at the anchor, ``merged/WEIGHT#B`` and ``merged/WEIGHT#A``, or
``merged/WEIGHT#D``; and what micro-batches have shown is ``watched/…``.
"""

from collections.abc import Iterable, Mapping
from typing import NamedTuple

import torch
from torch import Tensor, nn

from anchorhold.errors import StateError
from anchorhold.guard.core import Core, GuardState
from anchorhold.guard.ledger import Ledger
from anchorhold.guard.state.microbatches import WATCHED


class StatePlace(NamedTuple):
    """What a tensor of a state is."""

    kind: str
    """Such as ``"anchor"`` or ``"total/SI"``."""
    name: str
    """The parameter's, the block's, or the hold's own name for it."""
    part: str = ""
    """Which of a form's tensors it is."""


def parameters_of(core: Core, keys: Iterable[str], names: Iterable[str] = ()) -> dict[str, nn.Parameter]:
    """Return the protected parameters, and those of a state that have been frozen since, by its tensors' keys."""
    return core.parameters_with({*names, *(_place(core, key).name for key in keys)})


def place_of(core: Core, parameters: Mapping[str, nn.Parameter], key: str, shape: torch.Size) -> StatePlace:
    """Return what a tensor of a state is, or refuse one that does not fit the model."""
    place = _place(core, key)
    if (
        place.kind in ("merged", WATCHED)
        or place.kind.startswith("hold/")
        or (place.kind.startswith("total/") and not _ledger(core.state, place).form.elementwise)
    ):
        return place
    parameter = parameters.get(place.name)
    if parameter is None or parameter.shape != shape:
        has = "none of that name" if parameter is None else f"one of shape {tuple(parameter.shape)}"
        advice = f"For a layer that was taken away on purpose, call forget({place.name!r}) before saving."
        if parameter is not None and place.name in core.merged.names:
            advice = "It is an adapter's: a state is loaded for an adapter of the same rank that it was saved with."
        raise StateError(
            f"The state was made for another model: it holds a parameter {place.name!r} of shape {tuple(shape)}, and "
            f"this model has {has}. {advice}"
        )
    return place


def _place(core: Core, key: str) -> StatePlace:
    kinds = [*by_parameter(core), *(f"total/{label}" for label in core.state.ledgers)]
    kinds += [f"hold/{hold.name}" for hold in core.options.holds] + ["merged", WATCHED]
    kind = next((kind for kind in kinds if key.startswith(f"{kind}/")), None)
    if kind is None:
        raise StateError(f"The state holds {key!r}, which this version does not know.")
    place = StatePlace(kind, key[len(kind) + 1 :])
    if kind in ("merged", WATCHED) or (kind.startswith("total/") and not _ledger(core.state, place).form.elementwise):
        block, mark, part = place.name.rpartition("#")
        return StatePlace(kind, block, part) if mark else place
    return place


def _ledger(state: GuardState, place: StatePlace) -> Ledger:
    return state.ledgers[place.kind.partition("/")[2]]


def by_parameter(core: Core) -> dict[str, dict[str, Tensor]]:
    """Return the tensors of a memory that are shaped as parameters are, by what they are."""
    groups = {"anchor": core.state.anchor, "start": core.task.start, "tilt": core.state.linear_term}
    for label, ledger in core.state.ledgers.items():
        groups |= {kind: ledger.running[state] for state, kind in running_kinds(label, ledger).items()}
    return groups


def running_kinds(label: str, ledger: Ledger) -> dict[str, str]:
    """Return what a measure's running states are called in a state: a single one needs no name of its own."""
    states = list(ledger.measure.running)
    return {state: f"running/{label}" if len(states) == 1 else f"running.{state}/{label}" for state in states}
