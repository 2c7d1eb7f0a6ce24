"""Noticing a model that is not where its anchor is, though nothing has trained it since: one of other weights."""

import math
from collections.abc import Mapping

import torch
from torch import Tensor, nn

from holdfast.guard.memory import Memory
from holdfast.guard.noticing.telling import tell
from holdfast.tensors.sharding import like_parameter, local
from holdfast.tensors.storage import widest_dtype

ELSEWHERE = 0.01
"""How far from its anchor, by the length of both, a model may be before it is taken for another one."""


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
    """Warn if a state was loaded that was saved at the end of a task, and the model is not where it was then."""
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
