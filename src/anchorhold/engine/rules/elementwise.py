"""Parameters that are added to, multiplied with or put among what flows through the network."""

import torch
from torch import Tensor

from anchorhold.engine.rules.base import Rule, is_parameter, register_rule, sum_to


class Elementwise(Rule):
    """A parameter that is broadcast against the input."""

    def reads(self, dim: int) -> bool:
        """Return whether samples lie outside the dimensions that the parameter has values for."""
        return all(p.ndim <= self.input.ndim - dim for p in self.parameters.values())


class Shift(Elementwise):
    """``y = x + p``, broadcast: a sample's gradient is δ, summed over what shares the parameter.

    Parameters are real: where x is complex, p moves the real part of y alone, and its gradient is Re δ.
    """

    def gradients(self, role: str, a: Tensor, delta: Tensor) -> Tensor:
        """Return the sums of Re δ."""
        return sum_to(_real(delta), self.parameters[role].shape, 2)


class Scale(Elementwise):
    """``y = x · p``, broadcast: a sample's gradient is δ·x, or Re δ·x̄, summed over what shares the parameter."""

    def gradients(self, role: str, a: Tensor, delta: Tensor) -> Tensor:
        """Return the sums of Re δ·x̄."""
        return sum_to(_real(delta * a.conj()), self.parameters[role].shape, 2)


class Expansion(Shift):
    """``y = p.expand(N, ...)``, such as a class token put before every sample's own ones."""


@register_rule(torch.add, Tensor.add, Tensor.__add__, Tensor.__radd__, Tensor.add_, Tensor.__iadd__)
def addition(input: Tensor, other: Tensor) -> Shift | None:
    """Bind ``input + other`` where one of the two is a parameter."""
    pair = _flow_and_parameter(input, other)
    return None if pair is None else Shift(pair[0], {"shift": pair[1]})


@register_rule(torch.mul, Tensor.mul, Tensor.__mul__, Tensor.__rmul__)
def multiplication(input: Tensor, other: Tensor) -> Scale | None:
    """Bind ``input * other`` where one of the two is a parameter."""
    pair = _flow_and_parameter(input, other)
    return None if pair is None else Scale(pair[0], {"scale": pair[1]})


@register_rule(Tensor.expand)
def expansion(input: Tensor, *_sizes: object) -> Expansion | None:
    """Bind ``input.expand(*sizes)``."""
    return Expansion(input, {"shift": input}) if is_parameter(input) else None


def _real(gradients: Tensor) -> Tensor:
    return gradients.real if gradients.is_complex() else gradients


def _flow_and_parameter(x: object, y: object) -> tuple[Tensor, Tensor] | None:
    """Tell which of two operands is the parameter; the other must be at least as wide, so that y has its shape."""
    if is_parameter(x):
        x, y = y, x
    if isinstance(x, Tensor) and isinstance(y, Tensor) and is_parameter(y) and not is_parameter(x) and x.ndim >= y.ndim:
        return x, y
    return None
