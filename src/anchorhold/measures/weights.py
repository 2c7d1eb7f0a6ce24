"""Baselines that any importance measure has to beat, as in Benzing 2020 (arXiv 2006.06357)."""

import dataclasses
from typing import ClassVar, Literal

import torch
from torch import Tensor

from anchorhold.measures.base import WeightMeasure
from anchorhold.settings import yes_or_no


@dataclasses.dataclass(frozen=True)
class L2(WeightMeasure):
    r"""Every weight is equally important (L2-SP): :math:`\Omega = 1`, or, growing, the number of tasks so far.

    Args:
        growing: whether each task adds to the total.
    """

    growing: bool = False

    choose_when: ClassVar[str] = "A baseline: hold all weights equally; growing, harder with every task."

    def __post_init__(self) -> None:
        yes_or_no("growing", self.growing)

    @property
    def name(self) -> str:
        return "L2-growing" if self.growing else "L2"

    @property
    def total(self) -> Literal["add", "replace", "average"]:
        """A new one each time, unless it grows."""
        return "add" if self.growing else "replace"

    def importance(self, parameter: Tensor) -> Tensor:
        return torch.ones_like(parameter)


@dataclasses.dataclass(frozen=True)
class Magnitude(WeightMeasure):
    r"""Large weights are important: :math:`\omega = |\theta|` after training."""

    choose_when: ClassVar[str] = "A baseline: importance by the weights' size after training."

    @property
    def name(self) -> str:
        return "magnitude"

    def importance(self, parameter: Tensor) -> Tensor:
        """Return abs(θ)."""
        return parameter.detach().abs()


@dataclasses.dataclass(frozen=True)
class FineTune(WeightMeasure):
    r"""Nothing is important, :math:`\omega = 0`: training goes on without protection."""

    choose_when: ClassVar[str] = "A baseline: what is forgotten when nothing is done."

    @property
    def name(self) -> str:
        return "fine-tune"

    def importance(self, parameter: Tensor) -> Tensor:
        return torch.zeros_like(parameter)
