r"""The sums over samples where δ and the inputs come in 16 bits: by products of bfloat16 that add up in float32.

The covariances lose nothing by it, since their δ and inputs have no more digits. Coordinates do: they are rounded once
more, to as many digits as a form of 16 bits keeps of them.
"""

from collections.abc import Collection, Mapping

import torch
from torch import Tensor, nn

from anchorhold.engine.phi import Phi
from anchorhold.engine.reductions.layers import Block
from anchorhold.engine.rules.base import tile_bytes
from anchorhold.tensors.matrices import in_blocks
from anchorhold.tensors.sixteen_bits import has_matrix_units, multiplied

TILES = 4
"""Tiles of gradients that are made at once: a large layer's gradient fills one, and leaves a GPU's units waiting."""


def blocks_in_16_bits(blocks: Collection[Block], parameters: Mapping[str, nn.Parameter]) -> frozenset[str]:
    """Return the names of the blocks whose δ and inputs come in bfloat16, on a device that multiplies such numbers."""
    weights = {block.name: parameters[block.parameters[0]] for block in blocks}
    return frozenset(
        name for name, weight in weights.items() if weight.dtype == torch.bfloat16 and has_matrix_units(weight.device)
    )


def add_outer_in_16_bits_(total: Tensor, rows: Tensor) -> None:
    """Add vvᵀ of the vectors ``[L, size]`` to a matrix, or to each of its blocks; they lose digits beyond bfloat16."""
    rows = rows.to(torch.bfloat16)
    if total.ndim == 3:
        parts = in_blocks(rows, *total.shape[:2])
        total.add_(multiplied(parts.permute(1, 2, 0), parts.transpose(0, 1)))
    else:
        total.add_(multiplied(rows.mT, rows))


def add_phi_of_products_(total: Tensor, delta: Tensor, a: Tensor, phi: Phi) -> None:
    r"""Add :math:`\sum_{v,n} \varphi(\sum_t \delta_{vnt} a_{nt}^T)` for δ ``[V, N, T, outputs]``, a ``[N, T, inputs]``.

    δ and a are bfloat16, their products and the sum single precision.
    """
    samples = max(1, TILES * tile_bytes(total.device) // max(1, total.numel() * total.element_size()))
    for row in delta:
        for own, inputs in zip(row.split(samples), a.split(samples), strict=True):
            for gradient in multiplied(own.mT, inputs):
                phi.add_(total, gradient)
