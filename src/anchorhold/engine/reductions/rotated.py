r"""φ of every element of a layer's gradients in coordinates of its own, :math:`\varphi(U_G^T \Gamma U_A)`.

Liu et al. 2018 (arXiv 1802.02950); as a better scaling of the Kronecker factors' eigenvectors, George et al. 2018
(arXiv 1806.03884). It is the diagonal's own sum, of rotated δ and a.
"""

from collections.abc import Mapping, Sequence
from typing import Literal, NamedTuple

import torch
from torch import Tensor, nn

from anchorhold.engine.phi import Phi
from anchorhold.engine.reductions.base import at_least_single
from anchorhold.engine.reductions.layers import Block, LayerReduction
from anchorhold.engine.reductions.sixteen_bits import add_phi_of_products_, blocks_in_16_bits
from anchorhold.engine.rules.base import LookedUp, Products, phi_of_products, tile_bytes
from anchorhold.engine.rules.embedding import phi_of_looked_up
from anchorhold.tensors.matrices import Precision, times_blocks

Sharing = Literal["exact", "expand"]
"""Of a layer that is used at several positions: square a sample's gradient, the sum over them, or each position's."""


class Basis(NamedTuple):
    """The coordinates of a block: a matrix, or one of blocks; ``None`` for a side that stays as it is."""

    outputs: Tensor | None
    inputs: Tensor | None


class RotatedReduction(LayerReduction):
    """Adds up φ in each block's basis, in ``sums`` as ``BLOCK/S``, of outputs × inputs."""

    def __init__(
        self,
        phi: Phi,
        blocks: Sequence[Block],
        parameters: Mapping[str, nn.Parameter],
        bases: Mapping[str, Basis],
        sharing: Sharing = "exact",
        precision: Precision | None = None,
    ) -> None:
        super().__init__(phi, blocks, parameters, (), precision)
        self.bases = bases
        self.sharing = sharing
        # Coordinates are rounded to 16 bits only for a form that keeps no more of them, whose products are in TF32.
        self._in_16_bits = blocks_in_16_bits(self.blocks.values(), parameters) if precision == "tf32" else frozenset()
        for block in self.blocks.values():
            weight = parameters[block.parameters[0]]
            with torch.inference_mode(False):
                self.sums[f"{block.name}/S"] = torch.zeros(
                    block.size, dtype=at_least_single(weight.dtype), device=weight.device
                )

    def supports_products(self, block: Block, some: Products) -> bool:
        """Return whether inputs that are looked up stay as they are."""
        return not (isinstance(some.a, LookedUp) and self.bases[block.name].inputs is not None)

    def add_products(self, block: Block, products: Products, *, first: bool) -> None:
        """Rotate δ and a, or the gradients that they make where these are fewer, and add φ of their products."""
        basis, apart = self.bases[block.name], self.sharing == "expand"
        total, delta = self.sums[f"{block.name}/S"], products.delta
        if isinstance(products.a, LookedUp):
            delta, inputs = _turned(delta, basis.outputs), products.a
            if apart:
                inputs, delta = inputs._replace(places=inputs.places.reshape(-1, 1)), delta.flatten(1, 2).unsqueeze(2)
            total.add_(phi_of_looked_up(delta, inputs, self.phi).mT)
            return
        rows, _, places, outputs = delta.shape
        later = Basis(
            None if apart or places <= products.a.shape[-1] else basis.outputs,
            None if apart or places <= rows * outputs else basis.inputs,
        )
        if block.name in self._in_16_bits and later == Basis(None, None) and places > 1 and not apart:
            self._add_in_16_bits(total, products, basis)
            return
        delta = delta if later.outputs is not None else _turned(delta, basis.outputs)
        if later.inputs is not None:
            self._add_gradients(total, delta, products.a, later, bias=products.bias)
            return
        a = _turned_inputs(products.a, basis.inputs, bias=products.bias)
        if later.outputs is not None:
            self._add_gradients(total, delta, a, later, bias=False)
            return
        if apart:
            a, delta = a.flatten(0, 1).unsqueeze(1), delta.flatten(1, 2).unsqueeze(2)
        total.add_(phi_of_products(delta.permute(1, 0, 3, 2).unsqueeze(2), a.unsqueeze(1), self.phi).squeeze(0))

    def _add_in_16_bits(self, total: Tensor, products: Products, basis: Basis) -> None:
        """Rotate δ and a as bfloat16, and add φ of their products."""
        assert isinstance(products.a, Tensor)
        u_g, u_a = (None if u is None else u.to(torch.bfloat16) for u in basis)
        delta = _turned(products.delta.to(torch.bfloat16), u_g)
        a = _turned_inputs(products.a.to(torch.bfloat16), u_a, bias=products.bias)
        add_phi_of_products_(total, delta, a, self.phi)

    def _add_gradients(self, total: Tensor, delta: Tensor, a: Tensor, basis: Basis, *, bias: bool) -> None:
        """Make the gradients of some samples at a time, and add φ of them once they are rotated."""
        rows, samples, _, outputs = delta.shape
        wide = max(1, tile_bytes(a.device) // max(1, rows * total.numel() * total.element_size()))
        for first in range(0, samples, wide):
            here = slice(first, first + wide)
            own = delta[:, here].permute(1, 0, 3, 2).flatten(1, 2)
            gradients = own @ a[here]
            if bias:
                gradients = torch.cat([gradients, own.sum(-1, keepdim=True)], -1)
            self._add_rotated(total, gradients.view(-1, outputs, gradients.shape[-1]), basis)

    def add_matrices(self, block: Block, gradients: Tensor) -> None:
        """Rotate the gradients, and add φ of them."""
        total = self.sums[f"{block.name}/S"]
        wide = max(1, tile_bytes(gradients.device) // max(1, total.numel() * total.element_size()))
        for part in gradients.split(wide):
            self._add_rotated(total, part, self.bases[block.name])

    def _add_rotated(self, total: Tensor, gradients: Tensor, basis: Basis) -> None:
        if basis.outputs is not None and basis.outputs.ndim == 3:
            turned = times_blocks(gradients.mT, basis.outputs).mT
        else:
            turned = gradients if basis.outputs is None else basis.outputs.mT @ gradients
        total.add_(self.phi.sum(_turned(turned, basis.inputs), (0,)))


def _turned(vectors: Tensor, u: Tensor | None) -> Tensor:
    """Return vectors along the last dimension in other coordinates, as one product: many small ones are much slower."""
    if u is not None and u.ndim == 3:
        return times_blocks(vectors, u)
    return vectors if u is None else (vectors.reshape(-1, len(u)) @ u).view(*vectors.shape[:-1], u.shape[-1])


def _turned_inputs(a: Tensor, u: Tensor | None, *, bias: bool) -> Tensor:
    """Return the inputs, and the bias's 1 with them, in other coordinates."""
    if not bias:
        return _turned(a, u)
    if u is not None and u.ndim == 2:
        return _turned(a, u[:-1]).add_(u[-1])
    return _turned(torch.cat([a, a.new_ones(*a.shape[:-1], 1)], -1), u)
