"""Synaptic Intelligence (Zenke, Poole and Ganguli 2017, arXiv 1703.04200), its unbiased version and its bias alone.

The latter two are of Benzing 2020, "Unifying Regularisation Methods for Continual Learning" (arXiv 2006.06357).
"""

import dataclasses
from abc import abstractmethod
from collections.abc import Mapping
from typing import ClassVar, Literal

import torch
from torch import Tensor

from anchorhold.measures.base import Needs, PathMeasure, Seen, States
from anchorhold.measures.recurrences import add_to_path_, rescaled
from anchorhold.settings import number, require


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

    def __post_init__(self) -> None:
        expected = "a number above 0 (ξ keeps the division finite)"
        self._set("damping", number("damping", self.damping, expected, lambda given: given > 0))
        require(self.clamp in ("task", "total"), f"clamp={self.clamp!r}", "'task' or 'total'")

    @property
    def running(self) -> Mapping[str, Literal["task", "lasting"]]:
        """The path integral ω̃."""
        return {"path": "task"}

    @property
    def clamps_total(self) -> bool:
        return self.clamp == "total"

    def update_(self, states: States, seen: Seen) -> None:
        """Add this step's gradient times Δ."""
        assert seen.step is not None
        add_to_path_(states["path"], self.integrand(seen), seen.step)

    def importance(self, states: States, displacement: Tensor, steps: int) -> Tensor:
        """Return the rescaled path integral."""
        path = states["path"] if self.clamps_total else states["path"].clamp(min=0)
        return rescaled(path, displacement, self.damping)

    @abstractmethod
    def integrand(self, seen: Seen) -> Tensor:
        """Return what is multiplied with the step."""


@dataclasses.dataclass(frozen=True)
class SI(PathIntegral):
    r"""Synaptic Intelligence: how much each weight lowered the loss, measured with the step's own gradient.

    .. math:: \tilde\omega = -\sum_t g_t\,\Delta_t

    The gradient that makes the step also measures it, which biases the sum by the gradient's noise; that bias is most
    of SI, and what ties it to the square root of the Fisher information. Zenke, Poole and Ganguli 2017, arXiv
    1703.04200.
    """

    choose_when: ClassVar[str] = "The classic that needs no extra pass; small batches, constant learning rate."

    @property
    def needs(self) -> Needs:
        return Needs(gradient=True, step=True)

    def integrand(self, seen: Seen) -> Tensor:
        """Return g."""
        return seen.gradient


@dataclasses.dataclass(frozen=True)
class SIU(PathIntegral):
    r"""SI unbiased: the gradient is estimated on a second batch that took no part in the step.

    .. math:: \tilde\omega = -\sum_t g'_t\,\Delta_t

    Benzing 2020, arXiv 2006.06357.
    """

    choose_when: ClassVar[str] = "To attribute the loss's decrease to weights without bias; it protects worse than SI."

    @property
    def needs(self) -> Needs:
        return Needs(independent=True, step=True)

    def integrand(self, seen: Seen) -> Tensor:
        """Return g′."""
        assert seen.independent is not None
        return seen.independent


@dataclasses.dataclass(frozen=True)
class SIB(PathIntegral):
    r"""SI's bias alone: nothing but gradient noise times the step, and yet it protects as well as SI.

    .. math:: \tilde\omega = -\sum_t (g_t - g'_t)\,\Delta_t

    Benzing 2020, arXiv 2006.06357.
    """

    choose_when: ClassVar[str] = "To study SI's bias; in practice SOS measures the same thing more directly."

    @property
    def needs(self) -> Needs:
        return Needs(gradient=True, independent=True, step=True)

    def integrand(self, seen: Seen) -> Tensor:
        """Return g − g′."""
        assert seen.independent is not None
        return torch.sub(seen.gradient, seen.independent)
