"""How far weights are from where they are held: by some of their elements, or by all of them."""

import math
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from anchorhold.tensors.sharding import like_parameter, local
from anchorhold.tensors.storage import widest_dtype

if TYPE_CHECKING:
    from anchorhold.guard.core import Core

ELEMENTS = 4096
"""Elements of each parameter that are looked at."""


def some_of(tensor: Tensor) -> Tensor:
    """Return some elements of a gradient or of weights, spread evenly, and in full precision."""
    own = local(tensor.detach()).reshape(-1)
    return own[:: (own.numel() // ELEMENTS) | 1].to(torch.promote_types(own.dtype, torch.float32), copy=True)


@torch.no_grad()
def displacements(
    core: "Core", owned: Mapping[str, nn.Parameter], *, adapters: bool = False
) -> Iterator[tuple[Tensor, Tensor, int]]:
    """Yield of each tensor that is held some of θ − θ*, the same elements of θ*, and how many it has in all.

    Args:
        core: what the guard knows.
        owned: the protected parameters to look at.
        adapters: whether to yield also those that are held by their merged weights.
    """
    # In the coordinates that they are held in: a layer's anchor may be of the map that a batch norm makes of it.
    coordinates, anchor = core.space.coordinates(owned), core.state.anchor
    # An adapter that is held by its merged weight has an anchor of its own parameters beside that.
    held = core.state.driving.held_names | (core.space.in_parts if adapters else set())
    for name, here in coordinates.items():
        if name in held and name in anchor and (own := local(here)).numel():
            there = some_of(like_parameter(anchor[name], here)).to(own.device)
            yield some_of(own) - there, there, own.numel()


@torch.no_grad()
def how_far(core: "Core", owned: Mapping[str, nn.Parameter], *, adapters: bool = False) -> Tensor:
    """Return the sums of |θ − θ*| and of |θ*|, over all that is held."""
    terms = [
        torch.stack([apart.abs().mean(), there.abs().mean()]).to(widest_dtype(apart.device)) * elements
        for apart, there, elements in displacements(core, owned, adapters=adapters)
    ]
    return torch.stack([term.to(terms[0].device) for term in terms]).sum(0) if terms else torch.zeros(2)


def times_away(core: "Core", owned: Mapping[str, nn.Parameter], *, adapters: bool = False) -> float:
    """Return how many times their own size weights are away from where they are held; 0 where they have none there."""
    apart, size = how_far(core, owned, adapters=adapters).tolist()
    return apart / size if size else 0.0


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


def distance_in_words(away: float) -> str:
    """Return such a distance, to be followed by what weights are away from."""
    if not math.isfinite(away):
        return "away, from 0," if away == math.inf else "not finite, and away"
    share = 100 * away
    return f"{share:.2g} % away" if share < 10 else f"{share:,.0f} % away"
