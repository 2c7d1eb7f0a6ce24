r"""What the engine makes of what arrives at a use of a parameter: the use's input a, and δ, the gradient at its output.

The engine brings both, samples told apart, and a reduction adds them up. The diagonal of an importance is the sum of
:math:`\varphi(\delta a^T)` over samples; another form of the same importance wants other sums of the same two.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import NamedTuple

import torch
from torch import Tensor, nn

from holdfast.persample.phi import Phi
from holdfast.persample.rules.base import Rule
from holdfast.persample.tracing.parameter_views import Part


class Arrival(NamedTuple):
    """What arrived at one use of some parameters."""

    rule: Rule
    """How their gradients follow from the two tensors."""
    parts: Mapping[str, Part]
    """The parameters, or the parts of them, by their roles in the rule."""
    input: Tensor
    """a, as ``[N, ...]``."""
    delta: Tensor
    """δ, as ``[V, N, ...]`` for V rows of scores."""
    first: bool = True
    """Whether these are the samples' first rows: what is made of inputs alone is added up once for all rows."""


class Reduction(ABC):
    """Sums over samples and rows of scores.

    ``phi`` is what the engine folds the scores' weights in for, and ``sums`` holds what has been added up so far by
    names of the reduction's own: whoever measures in several processes adds those up.
    """

    phi: Phi
    sums: dict[str, Tensor]

    @abstractmethod
    def add(self, arrival: Arrival) -> None:
        """Add a use whose parameters no other use of the same pass overlaps."""

    @abstractmethod
    def add_gradients(self, name: str, gradients: Tensor, lead: int) -> None:
        """Add a parameter's own gradients, of rows and samples along the first ``lead`` dimensions.

        So come the parameters that are used in several places, whose gradients are summed before anything else is done
        to them, and those that no rule covers.
        """


class DiagonalReduction(Reduction):
    """Adds up φ of every element of the gradients: the diagonal, in the parameters' own shapes."""

    def __init__(self, phi: Phi, parameters: Mapping[str, nn.Parameter]) -> None:
        self.phi = phi
        with torch.inference_mode(False):
            self.sums = {
                name: torch.zeros_like(p, dtype=at_least_single(p.dtype), requires_grad=False)
                for name, p in parameters.items()
            }

    def add(self, arrival: Arrival) -> None:
        """Let the rule add up φ, which for many layers needs no gradient of a single sample."""
        for role, part in arrival.parts.items():
            found = arrival.rule.importance(role, arrival.input, arrival.delta, self.phi)
            part.within(self.sums[part.name]).add_(found)

    def add_gradients(self, name: str, gradients: Tensor, lead: int) -> None:
        """Add φ of the gradients."""
        total = self.sums[name]
        gradients = gradients.to(total.dtype)
        total.add_(self.phi.sum(gradients, tuple(range(lead))) if lead else self.phi(gradients))


def at_least_single(dtype: torch.dtype) -> torch.dtype:
    """Return the precision in which sums are kept: a type's own, but single at least."""
    if dtype == torch.complex32:
        return torch.complex64
    return torch.float32 if dtype in (torch.float16, torch.bfloat16) else dtype
