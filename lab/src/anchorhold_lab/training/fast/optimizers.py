r"""Adam and SGD as element-wise formulas over tensors of any shape, with what depends on the step number in a table.

A recorded step cannot compute :math:`1-\beta^t` on the host, so each optimizer gives its coefficients for every step
of a task beforehand, and a step looks up its row.
"""

from dataclasses import dataclass
from typing import ClassVar, Protocol

import torch
from torch import Tensor

from anchorhold_lab.training.protocol import WEIGHT_DECAY, Settings


class ElementwiseOptimizer(Protocol):
    """An optimizer whose step is one formula for all weights."""

    moments: ClassVar[tuple[str, ...]]
    """What it remembers about each weight, under the names that torch's optimizer gives them; zeros at first."""

    def coefficients(self, steps: int) -> Tensor:
        """Return what each step of a task of so many needs beside the gradient, one row a step, in float64."""

    def step_(self, parameter: Tensor, gradient: Tensor, moments: tuple[Tensor, ...], row: Tensor) -> None:
        """Take a step in place, with a row of the coefficients."""

    def reach(self, moments: tuple[Tensor, ...], row: Tensor) -> Tensor:
        """Return how far the step just taken goes for a gradient that stays, for an implicit hold."""


@dataclass(frozen=True)
class Adam:
    """As :class:`torch.optim.Adam`, or AdamW where weights decay."""

    learning_rate: float
    beta1: float = 0.9
    beta2: float = 0.999
    epsilon: float = 1e-8
    weight_decay: float = 0.0
    rate_decay: float = 1.0

    moments: ClassVar[tuple[str, ...]] = ("exp_avg", "exp_avg_sq")

    def coefficients(self, steps: int) -> Tensor:
        """Return the step size without the first moment's bias, the root of the second's, and the rate if it decays."""
        t = torch.arange(1, steps + 1, dtype=torch.float64)
        rate = _rates(self.learning_rate, self.rate_decay, steps)
        columns = [rate / (1 - self.beta1**t), (1 - self.beta2**t).sqrt()]
        return torch.stack([*columns, *([rate] if self.rate_decay != 1 else [])], dim=1)

    def _rate(self, row: Tensor) -> float | Tensor:
        return self.learning_rate if self.rate_decay == 1 else row[2]

    def step_(self, parameter: Tensor, gradient: Tensor, moments: tuple[Tensor, ...], row: Tensor) -> None:
        """Take a step in place."""
        if self.weight_decay:
            parameter.mul_(1 - self._rate(row) * self.weight_decay)
        mean, square = moments
        mean.lerp_(gradient, 1 - self.beta1)
        square.mul_(self.beta2).addcmul_(gradient, gradient, value=1 - self.beta2)
        parameter.sub_(row[0] * mean / (square.sqrt() / row[1] + self.epsilon))

    def reach(self, moments: tuple[Tensor, ...], row: Tensor) -> Tensor:
        """Return η/(√v̂ + ε)."""
        return self._rate(row) / (moments[1].sqrt() / row[1] + self.epsilon)


@dataclass(frozen=True)
class SGD:
    """As :class:`torch.optim.SGD` with momentum and no damping."""

    learning_rate: float
    momentum: float
    rate_decay: float = 1.0

    moments: ClassVar[tuple[str, ...]] = ("momentum_buffer",)

    def coefficients(self, steps: int) -> Tensor:
        """Return the learning rate, the same at every step unless it decays."""
        return _rates(self.learning_rate, self.rate_decay, steps).unsqueeze(1)

    def step_(self, parameter: Tensor, gradient: Tensor, moments: tuple[Tensor, ...], row: Tensor) -> None:
        """Take a step in place."""
        (velocity,) = moments
        velocity.mul_(self.momentum).add_(gradient)
        parameter.sub_(row[0] * velocity)

    def reach(self, moments: tuple[Tensor, ...], row: Tensor) -> Tensor:
        """Return η/(1 − μ)."""
        return row[0] / (1 - self.momentum)


def optimizer_of(settings: Settings) -> ElementwiseOptimizer:
    """Return the optimizer that the settings ask for."""
    decay = settings.rate_decay
    if settings.optimizer == "adam":
        return Adam(settings.learning_rate, rate_decay=decay)
    if settings.optimizer == "adamw":
        return Adam(settings.learning_rate, weight_decay=WEIGHT_DECAY, rate_decay=decay)
    return SGD(settings.learning_rate, settings.momentum, decay)


def _rates(first: float, decay: float, steps: int) -> Tensor:
    """Return the learning rate of each step of a task, as ``Settings.rate`` has it."""
    if decay == 1:
        return torch.full((steps,), first, dtype=torch.float64)
    return first * decay ** (torch.arange(steps, dtype=torch.float64) / max(1, steps - 1))
