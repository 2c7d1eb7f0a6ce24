"""Embedding tables: a sample touches only the rows it looks up."""

from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor

from anchorhold.engine.phi import Phi
from anchorhold.engine.rules.base import LookedUp, Products, Rule, register_rule


class Embedding(Rule):
    """``y_t = weight[index_t]``, so row k of a sample's gradient is the sum of δ over the places that look up k."""

    inputs_first: ClassVar[bool] = True

    def __init__(
        self, input: Tensor, weight: Tensor, padding_idx: int | None = None, *, shortens: bool = False
    ) -> None:
        super().__init__(input, {"weight": weight})
        self.weight = weight
        self.shortens = shortens  # whether the call first writes to the rows that it looks up (max_norm)
        # F.embedding counts a negative padding index from the end.
        self.padding_idx = None if padding_idx is None else padding_idx % weight.shape[0]

    def gradients(self, role: str, a: Tensor, delta: Tensor) -> Tensor:
        """Return the dense gradients, for tables that are shared with another layer."""
        index, delta = self._flat(a, delta)
        dense = delta.new_zeros(*delta.shape[:2], *self.weight.shape)
        where = index.unsqueeze(-1).expand(delta.shape[1:]).expand_as(delta)
        return dense.scatter_add_(2, where, delta)

    def importance(self, role: str, a: Tensor, delta: Tensor, phi: Phi) -> Tensor:
        """Return the importance, adding up repeated look-ups of a sample before φ."""
        index, delta = self._flat(a, delta)
        return phi_of_looked_up(delta, LookedUp(index, self.weight.shape[0]), phi)

    def inputs(self, a: Tensor) -> LookedUp:
        """Return which rows were looked up, the padding's among them: it has no gradient, and is read all the same."""
        return LookedUp(a.reshape(len(a), -1), self.weight.shape[0])

    def products(self, a: Tensor, delta: Tensor) -> Products:
        """Return δ of every place, and which rows were looked up there."""
        index, delta = self._flat(a, delta)
        return Products(delta, LookedUp(index, self.weight.shape[0], self.padding_idx))

    def products_numel(self, a: Tensor) -> int:
        return a[0].numel()

    def row_numel(self, role: str) -> int:
        """Return 0: there is no more than δ itself."""
        return 0

    def _flat(self, a: Tensor, delta: Tensor) -> tuple[Tensor, Tensor]:
        """Return the indices as ``[N, T]`` and δ as ``[V, N, T, width]``, 0 where the padding index was looked up."""
        index = a.reshape(len(a), -1)
        delta = delta.reshape(*delta.shape[:2], index.shape[1], -1)
        if self.padding_idx is not None:
            delta = delta * (index != self.padding_idx).unsqueeze(-1)
        return index, delta


@register_rule(F.embedding)
def embedding(
    input: Tensor,
    weight: Tensor,
    padding_idx: int | None = None,
    max_norm: float | None = None,
    norm_type: float = 2.0,  # noqa: ARG001 (part of the signature)
    scale_grad_by_freq: bool = False,
    sparse: bool = False,  # noqa: ARG001
) -> Embedding | None:
    """Bind ``F.embedding``; a gradient that is scaled by frequency is left to autograd."""
    return None if scale_grad_by_freq else Embedding(input, weight, padding_idx, shortens=max_norm is not None)


def phi_of_looked_up(delta: Tensor, inputs: LookedUp, phi: Phi) -> Tensor:
    """Return φ of the rows' gradients, summed over samples, for δ of ``[V, N, T, width]``: ``[rows, width]``."""
    sample = torch.arange(len(inputs.places), device=delta.device).unsqueeze(-1)
    looked_up, inverse = torch.unique(sample * inputs.rows + inputs.places, return_inverse=True)
    sums = delta.new_zeros(len(delta), len(looked_up), delta.shape[-1])
    sums.index_add_(1, inverse.flatten(), delta.flatten(1, 2))
    total = delta.new_zeros(inputs.rows, delta.shape[-1])
    return total.index_add_(0, looked_up % inputs.rows, phi.sum(sums, (0,)))
