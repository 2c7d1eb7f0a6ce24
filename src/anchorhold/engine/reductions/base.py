r"""What the engine adds up over samples, and the plainest of it: the diagonal.

At a use of a parameter the engine brings the use's input a and δ, the gradient at its output, samples told apart; a
reduction adds them up. The diagonal of an importance is the sum of :math:`\varphi(\delta a^T)` over samples; another
form of the same importance wants other sums of the same two.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import ClassVar, NamedTuple

import torch
from torch import Tensor, nn

from anchorhold.engine.phi import Phi
from anchorhold.engine.rules.base import Part, Rule


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

    one_sample_at_a_time: ClassVar[bool] = False
    """Whether :meth:`add_gradients` wants those of one sample in each call, where the engine makes them."""

    @property
    def coupled_parameters(self) -> Mapping[str, tuple[str, ...]]:
        """The parameters that are added up together with others: in one use, or as gradients in one call."""
        return {}

    def supports(self, arrival: Arrival) -> bool:
        """Return whether :meth:`add` can add up a use; if not, its parameters come to :meth:`add_gradients`."""
        return True

    @abstractmethod
    def add(self, arrival: Arrival) -> None:
        """Add a use whose parameters no other use of the same pass overlaps."""

    @abstractmethod
    def add_gradients(self, gradients: Mapping[str, Tensor], lead: int) -> None:
        """Add parameters' own gradients, of rows and samples along the first ``lead`` dimensions.

        So come the parameters that are used in several places, whose gradients are summed before anything else is done
        to them, and those that no rule covers.
        """

    def finish(self) -> None:  # noqa: B027 (most have put nothing off)
        """Bring ``sums`` up to date, of which a part may be put off until they are asked for."""


def at_least_single(dtype: torch.dtype) -> torch.dtype:
    """Return the precision in which sums are kept: a type's own, but single at least."""
    if dtype == torch.complex32:
        return torch.complex64
    return torch.float32 if dtype in (torch.float16, torch.bfloat16) else dtype


class DiagonalReduction(Reduction):
    """Adds up φ of every element of the gradients, in the parameters' own shapes."""

    # One after the other, so that importances keep the bits that they have always had.
    one_sample_at_a_time: ClassVar[bool] = True

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

    def add_gradients(self, gradients: Mapping[str, Tensor], lead: int) -> None:
        for name, own in gradients.items():
            total = self.sums[name]
            found = own.to(total.dtype)
            total.add_(self.phi.sum(found, tuple(range(lead))) if lead else self.phi(found))
