"""Synaptic Intelligence, its unbiased version and its bias alone."""

import dataclasses
from abc import abstractmethod
from typing import ClassVar, Literal

import torch
from torch import Tensor

from holdfast.measures.base import PathMeasure
from holdfast.measures.recurrences import add_to_path_, rescaled
from holdfast.settings import number, require


@dataclasses.dataclass(frozen=True)
class PathIntegral(PathMeasure):
    r"""A sum of gradient times step along the training path, rescaled at the end of the task.

    .. math:: \omega = \frac{\max(0, \tilde\omega)}{(\theta(T)-\theta(0))^2 + \xi}

    Args:
        damping: ξ; the paper uses 0.1 on Permuted MNIST and 0.001 on Split CIFAR.
        clamp: ``"task"`` clamps each task's importance at 0, as the paper does; ``"total"`` adds negative importances
            to the total and clamps that, as the original SI code does.
    """

    damping: float = 0.1
    clamp: Literal["task", "total"] = "task"

    slot: ClassVar[str] = "path"
    needs_step: ClassVar[bool] = True

    def __post_init__(self) -> None:
        expected = "a number above 0 (ξ keeps the division finite)"
        self._set("damping", number("damping", self.damping, expected, lambda given: given > 0))
        require(self.clamp in ("task", "total"), f"clamp={self.clamp!r}", "'task' or 'total'")

    @property
    def clamps_total(self) -> bool:
        """Whether the total is clamped rather than each task."""
        return self.clamp == "total"

    def update_(
        self, state: Tensor, gradient: Tensor, independent: Tensor | None, step: Tensor | None, samples: int | None
    ) -> None:
        """Add this step's gradient times Δ."""
        assert step is not None
        add_to_path_(state, self.integrand(gradient, independent), step)

    def importance(self, state: Tensor, displacement: Tensor, steps: int) -> Tensor:
        """Return the rescaled path integral."""
        path = state if self.clamps_total else state.clamp(min=0)
        return rescaled(path, displacement, self.damping)

    @abstractmethod
    def integrand(self, gradient: Tensor, independent: Tensor | None) -> Tensor:
        """Return what is multiplied with the step."""


@dataclasses.dataclass(frozen=True)
class SI(PathIntegral):
    r"""Synaptic Intelligence: how much each weight lowered the loss, measured with the step's own gradient.

    .. math:: \tilde\omega = -\sum_t g_t\,\Delta_t

    The gradient that makes the step also measures it, which biases the sum by the gradient's noise; that bias is most
    of SI, and what ties it to the square root of the Fisher information.
    """

    choose_when: ClassVar[str] = "The classic that needs no extra pass; small batches, constant learning rate."

    def integrand(self, gradient: Tensor, independent: Tensor | None) -> Tensor:
        """Return g."""
        return gradient


@dataclasses.dataclass(frozen=True)
class SIU(PathIntegral):
    r"""SI unbiased: the gradient is estimated on a second batch that took no part in the step.

    .. math:: \tilde\omega = -\sum_t g'_t\,\Delta_t
    """

    choose_when: ClassVar[str] = "To attribute the loss's decrease to weights without bias; it protects worse than SI."

    @property
    def needs_gradient(self) -> bool:
        """Never."""
        return False

    @property
    def needs_independent_gradient(self) -> bool:
        """Always."""
        return True

    def integrand(self, gradient: Tensor, independent: Tensor | None) -> Tensor:
        """Return g′."""
        assert independent is not None
        return independent


@dataclasses.dataclass(frozen=True)
class SIB(PathIntegral):
    r"""SI's bias alone: nothing but gradient noise times the step, and yet it protects as well as SI.

    .. math:: \tilde\omega = -\sum_t (g_t - g'_t)\,\Delta_t
    """

    choose_when: ClassVar[str] = "To study SI's bias; in practice SOS measures the same thing more directly."

    @property
    def needs_independent_gradient(self) -> bool:
        """Always."""
        return True

    def integrand(self, gradient: Tensor, independent: Tensor | None) -> Tensor:
        """Return g − g′."""
        assert independent is not None
        return torch.sub(gradient, independent)
