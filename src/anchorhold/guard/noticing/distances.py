"""How far weights are from where they are held, by some of their elements."""

from collections.abc import Iterator, Mapping

import torch
from torch import Tensor, nn

from anchorhold.guard.memory import Memory
from anchorhold.tensors.sharding import like_parameter, local
from anchorhold.tensors.storage import widest_dtype

ELEMENTS = 4096
"""Elements of each parameter that are looked at."""


def some_of(tensor: Tensor) -> Tensor:
    """Return some elements of a gradient or of weights, spread evenly, and in full precision."""
    own = local(tensor.detach()).reshape(-1)
    return own[:: (own.numel() // ELEMENTS) | 1].to(torch.promote_types(own.dtype, torch.float32), copy=True)


@torch.no_grad()
def displacements(memory: Memory, owned: Mapping[str, nn.Parameter]) -> Iterator[tuple[Tensor, Tensor, int]]:
    """Yield of each tensor that is held some of θ − θ*, the same elements of θ*, and how many it has in all."""
    # In the coordinates that they are held in: a layer's anchor may be of the map that a batch norm makes of it.
    coordinates, anchor = memory.folding.coordinates(owned), memory.anchor
    held = memory.driving.held_names
    for name, here in coordinates.items():
        if name in held and name in anchor and (own := local(here)).numel():
            there = some_of(like_parameter(anchor[name], here)).to(own.device)
            yield some_of(own) - there, there, own.numel()


@torch.no_grad()
def how_far(memory: Memory, owned: Mapping[str, nn.Parameter]) -> Tensor:
    """Return the sums of |θ − θ*| and of |θ*|, over all that is held."""
    terms = [
        torch.stack([apart.abs().mean(), there.abs().mean()]).to(widest_dtype(apart.device)) * elements
        for apart, there, elements in displacements(memory, owned)
    ]
    return torch.stack([term.to(terms[0].device) for term in terms]).sum(0) if terms else torch.zeros(2)


def times_away(memory: Memory, owned: Mapping[str, nn.Parameter]) -> float:
    """Return how many times their own size weights are away from where they are held; 0 where they have none there."""
    apart, size = how_far(memory, owned).tolist()
    return apart / size if size else 0.0
