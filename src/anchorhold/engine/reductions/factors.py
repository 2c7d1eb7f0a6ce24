r"""The two factors of a layer: of its inputs, :math:`A = E[\bar a\bar a^T]`, and of δ, :math:`G = E[\delta\delta^T]`.

Martens and Grosse 2015 (arXiv 1503.05671); for convolutions Grosse and Martens 2016 (arXiv 1602.01407), who sum G over
positions and take the mean of A over them, which Eschenhagen et al. 2023 (arXiv 2311.00636) call *expand*. Where only a
layer's gradients Γ can be had, :math:`G = E[\Gamma\Gamma^T]` and :math:`A = E[\Gamma^T\Gamma]/E\|\Gamma\|^2`, of which
the product has the right trace: one step of the power method towards the nearest one (Morwani et al. 2024, arXiv
2406.17748).
"""

from collections.abc import Collection, Mapping, Sequence
from typing import Literal, NamedTuple

import torch
from torch import Tensor, nn

from anchorhold.engine.phi import Phi
from anchorhold.engine.reductions.base import at_least_single
from anchorhold.engine.reductions.layers import Block, LayerReduction
from anchorhold.engine.reductions.sixteen_bits import add_outer_in_16_bits_, blocks_in_16_bits
from anchorhold.engine.rules.base import LookedUp, Products
from anchorhold.errors import ModelError
from anchorhold.tensors.matrices import Precision, add_outer_blocks_, block_shape

Side = Literal["dense", "blocks", "lowrank", "diagonal", "identity"]
"""How much of a factor is kept: all of it, blocks along its diagonal, its largest directions, for which all of it is
added up first, its diagonal, or nothing, since it is taken to be 1."""


COUNTS = 3
"""Numbers that a block has beside its factors: what A is divided by, and by which of two ways they came."""


class Sides(NamedTuple):
    """How much is kept of a block's two factors."""

    outputs: Side
    inputs: Side


class FactorReduction(LayerReduction):
    """Adds up both factors of every block, in ``sums`` as ``BLOCK/G``, ``BLOCK/A`` and what A is to be divided by.

    ``BLOCK/ways`` counts by which of the two ways they came, which have different units.
    """

    def __init__(
        self,
        phi: Phi,
        blocks: Sequence[Block],
        parameters: Mapping[str, nn.Parameter],
        diagonal: Collection[str],
        sides: Mapping[str, Sides],
        largest_block: int = 1024,
        precision: Precision | None = None,
    ) -> None:
        super().__init__(phi, blocks, parameters, diagonal, precision)
        self._by_gradients: set[str] = set()
        self._halves: dict[str, Tensor] = {}
        self._in_16_bits = blocks_in_16_bits(self.blocks.values(), parameters)
        for block in {block.name: block for block in self.blocks.values()}.values():
            weight = parameters[block.parameters[0]]
            nothing = torch.zeros((), dtype=at_least_single(weight.dtype), device=weight.device)
            with torch.inference_mode(False):
                for key, side, size in zip("GA", sides[block.name], block.size, strict=True):
                    if side != "identity":
                        self.sums[f"{block.name}/{key}"] = nothing.new_zeros(sums_shape(side, size, largest_block))
                self.sums[f"{block.name}/mass"] = nothing.new_zeros(())
                self.sums[f"{block.name}/ways"] = nothing.new_zeros(2)

    def supports_products(self, block: Block, some: Products) -> bool:
        """Return whether the block has not come by its gradients before."""
        return block.name not in self._by_gradients  # known here, since a GPU's sums would have to be waited for

    def add_products(self, block: Block, products: Products, *, first: bool) -> None:
        """Add δδᵀ of every row, sample and position, and aaᵀ of every sample and position."""
        self.sums[f"{block.name}/ways"][0] += 1
        in_16_bits = block.name in self._in_16_bits
        self._add_outer(f"{block.name}/G", products.delta, in_16_bits)
        if not first:
            return
        mass, factor = self.sums[f"{block.name}/mass"], self.sums.get(f"{block.name}/A")
        if isinstance(products.a, LookedUp):
            index, rows, padding = products.a
            counted = index.flatten() if padding is None else index[index != padding]
            mass += len(counted)
            if factor is not None:
                (factor if factor.ndim == 1 else factor.diagonal()).add_(torch.bincount(counted, minlength=rows))
            return
        mass += products.a[..., 0].numel()
        if factor is not None and factor.ndim == 3 and products.bias:
            one = products.a.new_ones(*products.a.shape[:-1], 1)
            self._add_outer(f"{block.name}/A", torch.cat([products.a, one], -1), in_16_bits)
            return
        self._add_outer(f"{block.name}/A", products.a, in_16_bits)
        if factor is not None and products.bias:
            if factor.ndim == 2:
                factor[-1, :-1] += as_rows(products.a).sum(0)
            factor.view(-1)[-1] += products.a[..., 0].numel()

    def add_matrices(self, block: Block, gradients: Tensor) -> None:
        """Add ΓΓᵀ and ΓᵀΓ."""
        self._by_gradients.add(block.name)
        self.sums[f"{block.name}/ways"][1] += 1
        self.sums[f"{block.name}/mass"] += gradients.square().sum()
        self._add_outer(f"{block.name}/G", gradients.mT)
        self._add_outer(f"{block.name}/A", gradients)

    def _add_outer(self, key: str, vectors: Tensor, in_16_bits: bool = False) -> None:
        """Add vvᵀ of all vectors ``[..., size]`` to a factor, where it is kept: of a matrix, below its diagonal."""
        factor, size = self.sums.get(key), vectors.shape[-1]
        if factor is None:
            return
        if factor.ndim == 3:
            (add_outer_in_16_bits_ if in_16_bits else add_outer_blocks_)(factor, as_rows(vectors))
            return
        if factor.ndim == 2:
            self._halves[key] = factor
        own = factor[tuple(slice(size) for _ in factor.shape)]
        if in_16_bits and factor.ndim == 2:
            add_outer_in_16_bits_(own, as_rows(vectors))
        else:
            add_outer_(own, vectors)

    def finish(self) -> None:
        """Fill in what lies above the factors' diagonals."""
        while self._halves:
            mirror_(self._halves.popitem()[1])


def sums_shape(side: Side, size: int, largest_block: int) -> tuple[int, ...]:
    """Return in which shape a side's factor is added up."""
    if side == "blocks":
        return block_shape(size, largest_block)
    return (size,) if side == "diagonal" else (size, size)


def factors_of(block: Block, means: Mapping[str, Tensor]) -> tuple[Tensor | None, Tensor | None]:
    """Return G and A of a block from the means of a :class:`FactorReduction`; ``None`` for one that is 1."""
    by_products, by_gradients = means[f"{block.name}/ways"].tolist()
    if by_products and by_gradients:
        raise ModelError(
            f"{block.name!r} is used in one place for some batches and in several, or in a way that has no rule, for "
            "others, so its factors have no common unit. Give batches of one size, of two samples at least, or protect "
            "that layer with form='diagonal'."
        )
    a, mass = means.get(f"{block.name}/A"), means[f"{block.name}/mass"]
    return means.get(f"{block.name}/G"), None if a is None else a / mass.clamp(min=torch.finfo(mass.dtype).tiny)


PANEL = 128
"""Columns of a sum of vvᵀ that are made at once on a CPU, from the diagonal down. Half of the products suffice, since
the sum is symmetric: narrower panels are slow, wider ones leave less out.
"""


def add_outer_(total: Tensor, vectors: Tensor) -> None:
    """Add vvᵀ of all vectors ``[..., size]`` to ``total``, or to its diagonal where it is a vector.

    On a CPU what lies above the diagonal is left out, but for what shares a panel with it: see :func:`mirror_`.
    """
    if total.ndim == 1:
        total.add_(as_rows(vectors).square().sum(0))
    elif _positions_last(vectors):
        matrices = _merged(vectors, 2)
        total.add_((matrices.mT @ matrices).sum(0))
    else:
        rows = as_rows(vectors)
        width = PANEL if total.device.type == "cpu" else len(total)
        for first in range(0, len(total), max(1, width)):
            here = slice(first, first + width)
            total[first:, here].addmm_(rows[:, first:].mT, rows[:, here])


def mirror_(total: Tensor) -> None:
    """Fill in what lies above the diagonal by what lies below."""
    for first in range(0, len(total), PANEL):
        here = slice(first, first + PANEL)
        corner = total[here, here]
        corner.copy_(corner.tril() + corner.tril(-1).mT)
        total[here, first + PANEL :] = total[first + PANEL :, here].mT


def as_rows(vectors: Tensor) -> Tensor:
    """Return vectors ``[..., size]`` as ``[L, size]``, in an order that spares a copy if one does."""
    return _merged(vectors, 1)


def _merged(tensor: Tensor, kept: int) -> Tensor:
    """Return a tensor with all but its last dimensions as one, which goes through memory as it lies."""
    lead = sorted(range(tensor.ndim - kept), key=tensor.stride, reverse=True)
    return tensor.permute(*lead, *range(-kept, 0)).flatten(0, -kept - 1)


def _positions_last(vectors: Tensor) -> bool:
    """Return whether vectors lie as matrices of size × positions, as a convolution leaves them, with many positions."""
    if vectors.ndim < 3:
        return False
    positions, size = vectors.shape[-2:]
    return positions >= size and vectors.stride()[-2:] == (1, positions)
