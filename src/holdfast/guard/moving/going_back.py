"""Going back along the line to the anchor until a tolerance is met."""

import torch
from torch import Tensor

from holdfast.guard.keeping.looking import look
from holdfast.guard.memory import Memory
from holdfast.guard.moving.averaging import checked_way, move_to
from holdfast.retention.way_back import PulledBack, furthest_within


@torch.no_grad()
def pull_back(memory: Memory, tolerance: float) -> PulledBack:
    """Move weights back towards the anchor, to the furthest point at which no kept set has lost more than a tolerance.

    If that cannot be met, or anything goes wrong, they stay where they are.
    """
    held = checked_way(memory, "pull_back()")
    memory.kept.refuse_unless_complete()
    if not memory.kept:
        look(memory)  # says that there are none
    own: dict[str, Tensor] = {name: parameter.detach().clone() for name, parameter in held.items()}

    def lost_at(share: float) -> float:
        move_to(memory, held, own, share)
        return look(memory).kl

    share = 1.0
    try:
        most = memory.control.most if memory.steps and memory.control.trace else None
        found = furthest_within(lost_at, tolerance, most)
        share = found.share
    finally:
        move_to(memory, held, own, share)
    memory.control.latest = {each.name: each.kl for each in look(memory).sets}
    return found
