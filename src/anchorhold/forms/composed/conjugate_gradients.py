"""Solving Q X = B where Q can only be applied, such as a sum of forms that have no coordinates in common."""

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from anchorhold.forms.base import Displacement

Linear = Callable[[Displacement], dict[str, Tensor]]
"""A symmetric and positive semi-definite map of a block's weights."""

MOST_STEPS = 1000
"""Each of them is one application of Q."""


class Solution(NamedTuple):
    """What was found, and how well it solves the equations."""

    x: dict[str, Tensor]
    residual: float
    """|B − QX| / |B|, in the preconditioner's norm where there is one."""
    steps: int


def conjugate_gradients(
    apply: Linear,
    b: Displacement,
    *,
    precondition: Linear = dict,
    tolerance: float | None = None,
    most_steps: int = MOST_STEPS,
) -> Solution:
    """Solve Q X = B from X = 0, so that X is nothing along what neither Q nor B reaches.

    Args:
        apply: Q.
        b: B.
        precondition: a map that is near to the inverse of Q; the nearer, the fewer steps it takes.
        tolerance: the residual at which to stop, by default the last digit that B's precision has.
        most_steps: where to stop in any case.
    """
    x = {name: torch.zeros_like(each) for name, each in b.items()}
    residual = {name: each.clone() for name, each in b.items()}
    direction = conditioned = precondition(residual)
    square = first = inner(residual, conditioned)
    smallest = (torch.finfo(square.dtype).eps if tolerance is None else tolerance) ** 2 * first
    steps = 0
    while steps < most_steps and bool(square > smallest):
        applied = apply(direction)
        curvature = inner(direction, applied)
        if not bool(curvature > 0):
            break
        step = square / curvature
        x = {n: x[n] + step * direction[n] for n in x}
        residual = {n: residual[n] - step * applied[n] for n in x}
        conditioned = precondition(residual)
        before, square = square, inner(residual, conditioned)
        direction = {n: conditioned[n] + square / before * direction[n] for n in x}
        steps += 1
    return Solution(x, float((square / first).clamp(min=0).sqrt()) if bool(first > 0) else 0.0, steps)


def inner(one: Displacement, other: Displacement) -> Tensor:
    """Return the sum of the products of two blocks' weights."""
    return torch.stack([(one[name] * other[name]).sum() for name in other]).sum()
