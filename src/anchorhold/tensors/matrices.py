"""Multiply matrices in a chosen precision, decompose them on any device, and hold block-diagonal ones.

A block-diagonal matrix is a tensor ``[blocks, side, side]``: blocks of one size, one after the other along the
diagonal. If the size is not a multiple of the side, the last block is smaller, and padded with zeros.
"""

import contextlib
from collections.abc import Callable, Iterator
from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from anchorhold.tensors.storage import widest_dtype

Precision = Literal["float32", "tf32", "bfloat16"]
"""The precision of a matrix product.

``"float32"`` is full precision. ``"tf32"`` rounds inputs to 10 bits on GPUs that support it, and is full precision
elsewhere; float64 stays float64. ``"bfloat16"`` multiplies tensors that were rounded to bfloat16.
"""


def rounded_dtype(precision: Precision, dtype: torch.dtype) -> torch.dtype:
    """Return the dtype to which tensors of a dtype are rounded before a product."""
    return torch.bfloat16 if precision == "bfloat16" else dtype


@contextlib.contextmanager
def products_in(precision: Precision, device: torch.device) -> Iterator[None]:
    """Multiply matrices in a precision, whatever autocast and TF32 are set to."""
    with contextlib.ExitStack() as stack:
        if torch.amp.is_autocast_available(device.type) and torch.is_autocast_enabled(device.type):
            stack.enter_context(torch.autocast(device.type, enabled=False))
        stack.enter_context(tf32_allowed(precision == "tf32", device))
        yield


@contextlib.contextmanager
def tf32_allowed(allowed: bool, device: torch.device) -> Iterator[None]:
    """Switch TF32 on or off for CUDA's matrix products and convolutions, and restore both settings."""
    if device.type != "cuda":
        yield
        return
    matmul, cudnn = torch.backends.cuda.matmul, torch.backends.cudnn
    before = matmul.allow_tf32, cudnn.allow_tf32
    matmul.allow_tf32 = cudnn.allow_tf32 = allowed
    try:
        yield
    finally:
        matmul.allow_tf32, cudnn.allow_tf32 = before


def decomposed(decomposition: Callable[..., Any], matrix: Tensor, **options: Any) -> Any:
    """Return a decomposition of a matrix, computed by the CPU if the matrix's device does not support it.

    Args:
        decomposition: a function of ``torch.linalg``, such as ``eigh``.
        matrix: the matrix.
        options: of the decomposition.
    """
    try:
        return decomposition(matrix, **options)
    except (NotImplementedError, RuntimeError) as error:
        # Apple's GPUs (MPS) have no eigenvectors, and AMD's (ROCm) only if PyTorch was built with MAGMA. Each says so
        # in its own error; a decomposition that failed to converge must not be tried again.
        is_missing = isinstance(error, NotImplementedError) or "MAGMA" in str(error) or "not implemented" in str(error)
        if matrix.device.type == "cpu" or not is_missing:
            raise
    found, device = decomposition(matrix.cpu(), **options), matrix.device
    if isinstance(found, Tensor):
        return found.to(device)
    moved = [each.to(device) for each in found]
    return type(found)(moved) if hasattr(found, "n_fields") else tuple(moved)  # n_fields: torch's own named tuples


def in_double(decomposition: Callable[..., Any], matrix: Tensor) -> tuple[Tensor, ...]:
    """Return a decomposition computed in float64, in the matrix's own dtype and on its device."""
    wide = matrix.to(torch.float64) if widest_dtype(matrix.device) == torch.float64 else matrix.cpu().double()
    return tuple(each.to(matrix.dtype).to(matrix.device) for each in decomposed(decomposition, wide))


def block_shape(size: int, most: int) -> tuple[int, int, int]:
    """Return the shape of a block-diagonal matrix of a size in the fewest blocks of at most ``most`` rows."""
    count = max(1, -(-size // most))
    side = -(-size // count)
    return count, side, side


def last_side(blocks: Tensor, size: int) -> int:
    """Return the number of rows of the last block without its padding."""
    return size - (len(blocks) - 1) * blocks.shape[-1]


def in_blocks(vectors: Tensor, count: int, side: int) -> Tensor:
    """Return vectors ``[..., size]`` as ``[..., blocks, side]``, padded with zeros."""
    missing = count * side - vectors.shape[-1]
    padded = F.pad(vectors, (0, missing)) if missing else vectors
    return padded.reshape(*vectors.shape[:-1], count, side)


def times_blocks(vectors: Tensor, blocks: Tensor) -> Tensor:
    """Return X M for vectors X ``[..., size]`` and a block-diagonal matrix M of that size."""
    count, side, _ = blocks.shape
    rows = in_blocks(vectors.reshape(-1, vectors.shape[-1]), count, side)
    found = (rows.transpose(0, 1) @ blocks).transpose(0, 1).flatten(1)
    return found[:, : vectors.shape[-1]].reshape(vectors.shape)


def add_outer_blocks_(total: Tensor, rows: Tensor) -> None:
    """Add the diagonal blocks of the sum of vvᵀ over vectors ``[L, size]``, in place."""
    parts = in_blocks(rows, *total.shape[:2])
    total.baddbmm_(parts.permute(1, 2, 0), parts.transpose(0, 1))


def as_matrix(blocks: Tensor, size: int) -> Tensor:
    """Return the whole matrix, with zeros outside the blocks."""
    found: Tensor = torch.block_diag(*blocks)
    return found[:size, :size]


def block_identity(blocks: Tensor, size: int) -> Tensor:
    """Return the identity in these blocks, 0 in the padding of the last one."""
    one = torch.eye(blocks.shape[-1], dtype=blocks.dtype, device=blocks.device).repeat(len(blocks), 1, 1)
    one[-1, last_side(blocks, size) :] = 0
    return one


def along_diagonal(blocks: Tensor, size: int) -> Tensor:
    """Return the diagonal of the whole matrix."""
    return blocks.diagonal(dim1=1, dim2=2).reshape(-1)[:size]
