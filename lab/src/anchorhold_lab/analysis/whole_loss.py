"""A loss over all data and its gradient, from parts that fit into memory, at the weights that are there or others."""

import contextlib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from anchorhold.errors import ModelError


@dataclass(frozen=True)
class Point:
    """A loss L and its gradient ∇L by name, in float64, at some weights."""

    loss: float
    gradient: dict[str, Tensor]


def loss_and_gradient(
    parts: Iterable[tuple[Tensor, float]], parameters: Mapping[str, nn.Parameter]
) -> tuple[Tensor, dict[str, Tensor]]:
    """Return the sum of losses times their factors, and its gradient by name, both in float64.

    Args:
        parts: losses with their factors; each is differentiated before the next is asked for.
        parameters: by name, what to differentiate with respect to.
    """
    total = {name: torch.zeros_like(p, dtype=torch.float64, requires_grad=False) for name, p in parameters.items()}
    values, used = [], False
    for loss, factor in parts:
        values.append(loss.detach().double() * factor)
        found = torch.autograd.grad(loss, list(parameters.values()), allow_unused=True)
        for added_up, gradient in zip(total.values(), found, strict=True):
            if gradient is not None:
                added_up.add_(gradient, alpha=factor)
                used = True
    if not used:
        raise ModelError(
            "The loss does not depend on the model's weights; expected one that is computed with the model itself, not "
            "with a copy of it."
        )
    return torch.stack(values).sum(), total


@contextlib.contextmanager
def weights_at(parameters: Mapping[str, nn.Parameter], values: Mapping[str, Tensor]) -> Iterator[None]:
    """Let parameters have other values for a while.

    Their own memory is not written to: they are afterwards what they were to the bit, and nobody who counts writes sees
    any.
    """
    kept = {name: parameter.data for name, parameter in parameters.items()}
    try:
        for name, parameter in parameters.items():
            parameter.data = values[name]
        yield
    finally:
        for name, parameter in parameters.items():
            parameter.data = kept[name]
