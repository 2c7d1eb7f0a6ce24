r"""The part of a quadratic hold that is linear, :math:`-2c\,\langle\theta-\theta^*, r\rangle`.

It belongs to a hold whose centre is not the anchor θ*: see :mod:`anchorhold.guard.anchors`, where r is from.
What does not depend on θ is left out, so the value is 0 at the anchor, and may be negative elsewhere.
"""

from collections.abc import Mapping
from types import MappingProxyType
from typing import ClassVar

import torch
from torch import Tensor

from anchorhold.holds.base import Held, Hold
from anchorhold.tensors.sharding import whole_sums
from anchorhold.tensors.storage import running_dtype, to_compute


class LinearTerm(Hold):
    """What the guard's own hold has beside its quadratic.

    Args:
        linear_term: r, by parameter.
        factors: by what a parameter's strength differs from the guard's own c, where it does.
    """

    name: ClassVar[str] = "tilt"

    def __init__(self, linear_term: Mapping[str, Tensor], factors: Mapping[str, float] = MappingProxyType({})) -> None:
        super().__init__()
        self.linear_term = linear_term
        self.factors = factors

    def gradient(self, held: Held) -> Mapping[str, Tensor]:
        """Return −2c·r."""
        own = {name: p for name, p in held.parameters.items() if name in self.linear_term}
        c = {name: held.strength * self.factors.get(name, 1.0) for name in own}
        return {name: -2 * c[name] * to_compute(self.linear_term[name], p) for name, p in own.items()}

    def value(self, held: Held) -> Tensor | None:
        """Return −2c⟨θ − θ*, r⟩; of sharded parameters, that of all processes' parts."""
        terms = []
        for name, parameter in held.parameters.items():
            if name in self.linear_term:
                dtype = running_dtype(parameter)
                r, theta_star = (
                    to_compute(kept[name], parameter).to(dtype) for kept in (self.linear_term, held.anchor)
                )
                lean = ((parameter.to(dtype) - theta_star) * r).sum()
                terms.append(self.factors.get(name, 1.0) * lean)
        if not terms:
            return None
        device = next(iter(held.parameters.values())).device
        return -2 * held.strength * torch.stack([term.to(device) for term in whole_sums(terms)]).sum()
