"""What an adapter adds to the weight of a layer, Δ: a matrix of outputs × inputs, whole or as a product."""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor


class Product(NamedTuple):
    """A change of low rank, BA."""

    b: Tensor
    """B, of outputs × rank."""
    a: Tensor
    """A, of rank × inputs."""


Change = Tensor | Product
"""Δ of one weight, as a matrix of outputs × inputs: whole, or as a product. A convolution's kernel belongs to its
inputs; an embedding's inputs are its rows."""


def whole(change: Change) -> Tensor:
    """Return Δ as one matrix."""
    return change.b @ change.a if isinstance(change, Product) else change


def size_of(change: Change) -> tuple[int, int]:
    """Return how many outputs and inputs a change has."""
    if isinstance(change, Product):
        return change.b.shape[0], change.a.shape[1]
    return change.shape[0], change.shape[1]


def mapped(change: Change, alter: Callable[[Tensor], Tensor]) -> Change:
    """Return a change with each tensor altered that it is made of: moved, or in another precision."""
    return Product(alter(change.b), alter(change.a)) if isinstance(change, Product) else alter(change)


def added(changes: Sequence[Change]) -> Change | None:
    """Return the sum of several adapters of one layer: of products, their factors side by side."""
    if not changes:
        return None
    products = [change for change in changes if isinstance(change, Product)]
    if len(products) == len(changes):
        return Product(torch.cat([b for b, _ in products], 1), torch.cat([a for _, a in products]))
    return torch.stack([whole(change) for change in changes]).sum(0)


def difference(now: Change, then: Change) -> Change:
    r"""Return :math:`\Delta - \Delta^*`.

    Of products with factors of one shape it is :math:`(B - B^*)A + B^*(A - A^*)`: small where the factors have hardly
    moved, and not the difference of two large numbers.
    """
    if not (isinstance(now, Product) and isinstance(then, Product)):
        return whole(now) - whole(then)
    if now.b.shape == then.b.shape:
        return Product(torch.cat([now.b - then.b, then.b], 1), torch.cat([now.a, now.a - then.a]))
    return Product(torch.cat([now.b, -then.b], 1), torch.cat([now.a, then.a]))


def in_parts(change: Change) -> dict[str, Tensor]:
    """Return what a change is made of, by the names that it is saved by."""
    return {"B": change.b, "A": change.a} if isinstance(change, Product) else {"D": change}


def of_parts(parts: dict[str, Tensor]) -> Change | None:
    """Return the change that :func:`in_parts` has taken apart; ``None`` for parts of none."""
    if parts.keys() == {"D"} and parts["D"].ndim == 2:
        return parts["D"]
    if parts.keys() == {"A", "B"} and parts["B"].ndim == parts["A"].ndim == 2:
        b, a = parts["B"], parts["A"]
        return Product(b, a) if b.shape[1] == a.shape[0] else None
    return None
