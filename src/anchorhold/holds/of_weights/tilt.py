r"""The part of a quadratic hold that is linear, :math:`-2c\,\langle\theta-\theta^*, r\rangle`.

It belongs to a hold whose centre is not the anchor θ*: see :mod:`anchorhold.guard.centre.anchors`, where r is from.
What does not depend on θ is left out, so the value is 0 at the anchor, and may be negative elsewhere.
"""

from collections.abc import Mapping
from types import MappingProxyType
from typing import ClassVar

import torch
from torch import Tensor

from anchorhold.holds.base import Held, Hold
from anchorhold.tensors.sharding import whole_sums
from anchorhold.tensors.storage import at_hand, running_dtype


class Tilt(Hold):
    """What the guard's own hold has beside its quadratic.

    Args:
        tilt: r, by parameter.
        factors: by what a parameter's strength differs from the guard's own c, where it does.
    """

    name: ClassVar[str] = "tilt"

    def __init__(self, tilt: Mapping[str, Tensor], factors: Mapping[str, float] = MappingProxyType({})) -> None:
        super().__init__()
        self.tilt = tilt
        self.factors = factors

    def gradient(self, held: Held) -> Mapping[str, Tensor]:
        """Return −2c·r."""
        own = {name: p for name, p in held.parameters.items() if name in self.tilt}
        c = {name: held.strength * self.factors.get(name, 1.0) for name in own}
        return {name: -2 * c[name] * at_hand(self.tilt[name], p) for name, p in own.items()}

    def value(self, held: Held) -> Tensor | None:
        """Return −2c⟨θ − θ*, r⟩; of sharded parameters, that of all processes' parts."""
        terms = []
        for name, parameter in held.parameters.items():
            if name in self.tilt:
                dtype = running_dtype(parameter)
                r, theta_star = (at_hand(kept[name], parameter).to(dtype) for kept in (self.tilt, held.anchor))
                lean = ((parameter.to(dtype) - theta_star) * r).sum()
                terms.append(self.factors.get(name, 1.0) * lean)
        if not terms:
            return None
        device = next(iter(held.parameters.values())).device
        return -2 * held.strength * torch.stack([term.to(device) for term in whole_sums(terms)]).sum()
