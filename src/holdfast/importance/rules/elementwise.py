"""Parameters that are added to, or multiplied with, what flows through the network."""

from torch import Tensor, nn

from holdfast.importance.rules.base import Rule, sum_to


class Shift(Rule):
    """``y = x + p``, broadcast: a sample's gradient is δ, summed over what shares the parameter."""

    def gradients(self, role: str, a: Tensor, delta: Tensor) -> Tensor:
        """Return the sums of δ."""
        return sum_to(delta, self.parameters[role].shape, 2)

    @classmethod
    def bind(cls, input: Tensor, other: Tensor, **scaling: float) -> "Shift | None":
        """Bind ``input + other`` where one of the two is a parameter; scaled ones have no rule."""
        pair = _flow_and_parameter(input, other)
        return None if pair is None or scaling else cls(pair[0], {"shift": pair[1]})


class Scale(Rule):
    """``y = x · p``, broadcast: a sample's gradient is δ·x, summed over what shares the parameter."""

    def gradients(self, role: str, a: Tensor, delta: Tensor) -> Tensor:
        """Return the sums of δ·x."""
        return sum_to(delta * a, self.parameters[role].shape, 2)

    @classmethod
    def bind(cls, input: Tensor, other: Tensor) -> "Scale | None":
        """Bind ``input * other`` where one of the two is a parameter."""
        pair = _flow_and_parameter(input, other)
        return None if pair is None else cls(pair[0], {"scale": pair[1]})


def _flow_and_parameter(x: object, y: object) -> tuple[Tensor, Tensor] | None:
    """Tell which of two operands is the parameter; the other must be at least as wide, so that y has its shape."""
    if isinstance(x, nn.Parameter):
        x, y = y, x
    if isinstance(x, Tensor) and isinstance(y, nn.Parameter) and not isinstance(x, nn.Parameter) and x.ndim >= y.ndim:
        return x, y
    return None
