"""Noticing weights that are not where their anchor is, though nothing has trained them since.

They are another model's, or those of a layer that was put in another's place.
"""

import math
from collections.abc import Mapping

import torch
from torch import Tensor, nn

from anchorhold.guard.memory import Memory
from anchorhold.guard.noticing.telling import tell
from anchorhold.tensors.sharding import like_parameter, local
from anchorhold.tensors.storage import widest_dtype

ELSEWHERE = 0.01
"""How far from its anchor, by the length of both, a model may be before it is taken for another one."""

ANEW = 0.5
"""How far from its anchor, by the length of that, a parameter may be before it is taken for one that was drawn anew.

Weights that have nothing to do with the anchor, or are all 0, are its whole length away or further. A layer that was
wrapped, sharded, converted or loaded is where it was, and one of another checkpoint of the same training is near.
"""
SHOWN = 4
"""So many of them are named."""


@torch.no_grad()
def distance(parameters: Mapping[str, nn.Parameter], anchor: Mapping[str, Tensor]) -> float:
    """Return how far a model's weights are from the anchor, by the length of that; NaN where they are not finite."""
    moved = size = 0.0
    for name, parameter in parameters.items():
        if name in anchor:
            wide = widest_dtype(parameter.device)
            then = local(like_parameter(anchor[name], parameter)).to(wide)
            moved += float((local(parameter).to(wide) - then).square().sum())
            size += float(then.square().sum())
    if not moved < math.inf:
        return math.nan
    return (moved / size) ** 0.5 if size else (math.inf if moved else 0.0)


def in_words(away: float) -> str:
    """Return such a distance, to be followed by what weights are away from."""
    if not math.isfinite(away):
        return "away, from 0," if away == math.inf else "not finite, and away"
    share = 100 * away
    return f"{share:.2g} % away" if share < 10 else f"{share:,.0f} % away"


def warn_of_other_weights(memory: Memory, file: str) -> None:
    """Warn if a state was loaded that was saved at the end of a task, and the model is not where it was then.

    Where all of it together is, a single layer may yet be another one: a head is little beside a large model.
    """
    # A mean of solutions is where no model was, and what is folded is held as the map that it is part of.
    if memory.anchor_kind != "last" or memory.folding.pairs:
        return
    away = distance(memory.parameters, memory.anchor)
    if not away <= ELSEWHERE:
        tell(
            f"The model's weights are {in_words(away)} from those that {file!r} was saved with, and are pulled there. "
            "Load the model's own checkpoint of then too: a guard's file has none. If they were drawn anew, merged or "
            "averaged on purpose, pay no heed."
        )
    else:
        _tell_of_replaced(memory, {n: p for n, p in memory.parameters.items() if n in memory.anchor})


def warn_of_replaced_layers(memory: Memory) -> None:
    """Warn of held parameters in whose place the model has others since they were consolidated, far from the anchor."""
    others, memory.replaced = memory.replaced - memory.told_of, frozenset()
    _tell_of_replaced(memory, {n: p for n, p in memory.parameters.items() if n in others})


def warn_of_replaced_in_the_penalty(memory: Memory, parameters: Mapping[str, nn.Parameter]) -> None:
    """Warn of the same before a penalty is added to a loss by hand, where there may be no step to look at.

    Args:
        memory: what the guard knows.
        parameters: the protected parameters as the model has them now.
    """
    if memory.steps or not memory.strength:
        return
    if memory.replaced:
        warn_of_replaced_layers(memory)
    here = ((name, now) for name, now in parameters.items() if now is not memory.parameters[name])
    # Beside parameters there are what a function is called with in their place, for a while.
    new = {n: p for n, p in here if n in memory.anchor and n not in memory.told_of and isinstance(p, nn.Parameter)}
    memory.told_of |= new.keys()
    _tell_of_replaced(memory, new)


def _tell_of_replaced(memory: Memory, others: Mapping[str, nn.Parameter]) -> None:
    """Say which of these parameters are pulled to what others were."""
    # What is held as part of something else has an anchor that is none of its own, and so has a mean of solutions.
    if not others or (memory.anchor_kind == "mean" and not memory.leans):
        return
    held = memory.driving.held_names - set(memory.folding.names)
    away = {n: distance({n: p}, memory.anchor) for n, p in others.items() if n in held}
    far = [name for name, share in away.items() if share > ANEW and _pulls_at(memory, name)]
    if far:
        most = max(far, key=lambda name: away[name])
        tell(_REPLACED.format(names=_listed(far), away=in_words(away[most]), most=most))


def _pulls_at(memory: Memory, name: str) -> bool:
    """Whether there is any importance that holds a parameter."""
    matrices = [matrix for matrix in memory.driving.held.values() if name in matrix.block.parameters]
    return any(bool(local(tensor).any()) for matrix in matrices for tensor in matrix.state().values())


def _listed(names: list[str]) -> str:
    return ", ".join(map(repr, names[:SHOWN])) + (f" and {len(names) - SHOWN} more" if names[SHOWN:] else "")


_REPLACED = (
    "The model has other parameters than those that were consolidated as {names}, and they are pulled to what those "
    "were ({most!r} is {away} from there). If a layer was put in another's place to learn anew, such as a head, call "
    "guard.forget() with these names before training, or leave them out of protect. If it has learned something, "
    "consolidate before it is trained further. If it is to become what the old one was, pay no heed."
)
