"""How far weights are from where they are held, by some of their elements."""

from collections.abc import Mapping

import torch
from torch import Tensor, nn

from holdfast.guard.memory import Memory
from holdfast.tensors.sharding import like_parameter, local
from holdfast.tensors.storage import widest_dtype

ELEMENTS = 4096
"""Elements of each parameter that are looked at."""


def some_of(tensor: Tensor) -> Tensor:
    """Return some elements of a gradient or of weights, spread evenly, and in full precision."""
    own = local(tensor.detach()).reshape(-1)
    return own[:: (own.numel() // ELEMENTS) | 1].to(torch.promote_types(own.dtype, torch.float32), copy=True)


@torch.no_grad()
def how_far(memory: Memory, owned: Mapping[str, nn.Parameter]) -> Tensor:
    """Return the sums of |θ − θ*| and of |θ*|, over all that is held."""
    anchor, terms = memory.anchor, []
    for name in memory.driving.held_names & owned.keys() & anchor.keys():
        own = local(owned[name])
        if own.numel():
            here, there = some_of(own), some_of(like_parameter(anchor[name], owned[name])).to(own.device)
            sizes = torch.stack([(here - there).abs().mean(), there.abs().mean()])
            terms.append(sizes.to(widest_dtype(own.device)) * own.numel())
    return torch.stack([term.to(terms[0].device) for term in terms]).sum(0) if terms else torch.zeros(2)


def times_away(memory: Memory, owned: Mapping[str, nn.Parameter]) -> float:
    """Return how many times their own size weights are away from where they are held; 0 where they have none there."""
    apart, size = how_far(memory, owned).tolist()
    return apart / size if size else 0.0
