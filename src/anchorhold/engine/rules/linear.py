"""Linear layers, applied to plain inputs or along a sequence."""

import math
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor

from anchorhold.engine.phi import Phi
from anchorhold.engine.rules.base import Products, Rule, phi_of_products, register_rule


class Linear(Rule):
    r"""``y = x Wᵀ + b``, so a sample's gradient is :math:`\sum_t \delta_t a_t^T` over its positions t."""

    def gradients(self, role: str, a: Tensor, delta: Tensor) -> Tensor:
        """Return ``Σ_t δ_t a_tᵀ`` or ``Σ_t δ_t``."""
        a, delta = _positions(a, delta)
        if role == "bias":
            return delta.sum(2)
        return delta.mT @ a

    def importance(self, role: str, a: Tensor, delta: Tensor, phi: Phi) -> Tensor:
        """Return the importance; a plain input needs no per-sample gradient."""
        a, delta = _positions(a, delta)
        if role == "bias":
            return phi.sum(delta.sum(2) if delta.shape[2] > 1 else delta.squeeze(2), (0, 1))
        return phi_of_products(delta.permute(1, 0, 3, 2).unsqueeze(2), a.unsqueeze(1), phi).squeeze(0)

    def delta_of_rows(self, role: str, delta: Tensor, rows: Tensor) -> Tensor | None:
        """Return δ of some outputs, each of which has a row of the weight."""
        return delta.index_select(-1, rows) if role == "weight" and not self.inputs_first else None

    def inputs(self, a: Tensor) -> Tensor:
        return a.reshape(len(a), math.prod(a.shape[1:-1]), a.shape[-1])

    def products(self, a: Tensor, delta: Tensor) -> Products:
        a, delta = _positions(a, delta)
        return Products(delta, a)

    def products_numel(self, a: Tensor) -> int:
        return a[0].numel()

    def row_numel(self, role: str) -> int:
        """Return 0 for the weight, since tiles bound what it needs; a bias's δ is rearranged once."""
        return 0 if role == "weight" else self.parameters[role].numel()


class Projection(Linear):
    """``y = x W + b``, as ``x @ weight`` or ``torch.addmm(bias, x, weight)`` write it."""

    inputs_first: ClassVar[bool] = True

    def gradients(self, role: str, a: Tensor, delta: Tensor) -> Tensor:
        """Return the transposed gradients of :class:`Linear`."""
        found = super().gradients(role, a, delta)
        return found.mT if role == "weight" else found

    def importance(self, role: str, a: Tensor, delta: Tensor, phi: Phi) -> Tensor:
        """Return the transposed importance of :class:`Linear`."""
        found = super().importance(role, a, delta, phi)
        return found.mT if role == "weight" else found


@register_rule(F.linear)
def linear(input: Tensor, weight: Tensor, bias: Tensor | None = None) -> Linear | None:
    """Bind ``F.linear``; a weight that is a vector, which gives one number and no features, has no rule."""
    return Linear(input, {"weight": weight, "bias": bias}) if weight.ndim == 2 else None


@register_rule(torch.matmul, Tensor.matmul, Tensor.__matmul__)
def matmul(input: Tensor, weight: Tensor) -> Projection | None:
    """Bind ``input @ weight``."""
    return Projection(input, {"weight": weight}) if weight.ndim == 2 and input.ndim >= 2 else None


@register_rule(torch.addmm)
def addmm(bias: Tensor, input: Tensor, weight: Tensor, **scaling: float) -> Projection | None:
    """Bind ``addmm(bias, input, weight)``; scaled ones have no rule."""
    return None if scaling or bias.ndim != 1 else Projection(input, {"weight": weight, "bias": bias})


def _positions(a: Tensor, delta: Tensor) -> tuple[Tensor, Tensor]:
    """View ``a`` as ``[N, T, in]`` and δ as ``[V, N, T, out]``."""
    places = math.prod(a.shape[1:-1])  # not -1, which a layer without features leaves open
    return a.reshape(len(a), places, a.shape[-1]), delta.reshape(*delta.shape[:2], places, delta.shape[-1])
