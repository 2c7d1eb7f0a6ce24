"""The diagonal: φ of every element of the gradients, in the parameters' own shapes."""

from collections.abc import Mapping
from typing import ClassVar

import torch
from torch import Tensor, nn

from anchorhold.engine.phi import Phi
from anchorhold.engine.reductions.base import Arrival, Reduction, at_least_single


class DiagonalReduction(Reduction):
    """Adds up φ of every element of the gradients."""

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
        """Add φ of the gradients."""
        for name, own in gradients.items():
            total = self.sums[name]
            found = own.to(total.dtype)
            total.add_(self.phi.sum(found, tuple(range(lead))) if lead else self.phi(found))
