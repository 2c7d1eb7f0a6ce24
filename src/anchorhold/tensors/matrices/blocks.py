"""Block-diagonal matrices as ``[blocks, side, side]``, blocks of one size one after the other along the diagonal.

Where they do not come out even the last one is smaller, and filled up with zeros.
"""

import torch
import torch.nn.functional as F
from torch import Tensor


def block_shape(size: int, most: int) -> tuple[int, int, int]:
    """Return the shape of a matrix of some size in as few blocks as can be, none larger than ``most``."""
    count = max(1, -(-size // most))
    side = -(-size // count)
    return count, side, side


def last_side(blocks: Tensor, size: int) -> int:
    """Return how large the last block is without what it is filled up with."""
    return size - (len(blocks) - 1) * blocks.shape[-1]


def in_blocks(vectors: Tensor, count: int, side: int) -> Tensor:
    """Return vectors ``[..., size]`` as ``[..., blocks, side]``."""
    missing = count * side - vectors.shape[-1]
    padded = F.pad(vectors, (0, missing)) if missing else vectors
    return padded.reshape(*vectors.shape[:-1], count, side)


def times_blocks(vectors: Tensor, blocks: Tensor) -> Tensor:
    """Return X M of vectors ``[..., size]`` and a block-diagonal matrix of that size."""
    count, side, _ = blocks.shape
    rows = in_blocks(vectors.reshape(-1, vectors.shape[-1]), count, side)
    found = (rows.transpose(0, 1) @ blocks).transpose(0, 1).flatten(1)
    return found[:, : vectors.shape[-1]].reshape(vectors.shape)


def add_outer_blocks_(total: Tensor, rows: Tensor) -> None:
    """Add what vvᵀ of all vectors ``[L, size]`` has in the blocks."""
    parts = in_blocks(rows, *total.shape[:2])
    total.baddbmm_(parts.permute(1, 2, 0), parts.transpose(0, 1))


def as_matrix(blocks: Tensor, size: int) -> Tensor:
    """Return the whole matrix, zeros beside the blocks."""
    found: Tensor = torch.block_diag(*blocks)
    return found[:size, :size]


def block_identity(blocks: Tensor, size: int) -> Tensor:
    """Return 1 in these blocks, and 0 where the last one is filled up."""
    one = torch.eye(blocks.shape[-1], dtype=blocks.dtype, device=blocks.device).repeat(len(blocks), 1, 1)
    one[-1, last_side(blocks, size) :] = 0
    return one


def along_diagonal(blocks: Tensor, size: int) -> Tensor:
    """Return the diagonal of the whole matrix."""
    return blocks.diagonal(dim1=1, dim2=2).reshape(-1)[:size]
