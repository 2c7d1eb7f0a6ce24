"""Products of two matrices, written where matrix units and caches are fastest: the fast path of ``x @ y``.

A layer with a bias has one input more than it has columns of weights, 2001 of 2000. Rows of 2001 numbers begin anywhere
in a cache line, and a product that is written to them takes 14 % longer on a CPU. Here rows that are long enough begin
on boundaries; the numbers are the same, to the last bit in float32 as MKL makes them. A GPU's matrix units (TF32 and 16
bits) also want to read such rows, and as many of them: there both matrices are padded with zeros first, which costs a
copy of each and no memory that stays.
"""

import torch
import torch.nn.functional as F
from torch import Tensor

BOUNDARY = 64
"""Bytes of a cache line, at a multiple of which rows begin."""

LONG = 512
"""Columns from which on a CPU's products gain by it; of fewer they take as long either way."""

LARGE = 2000
"""Rows, columns and terms of each sum from which on a GPU's products gain more than padding costs.

On an H200 those of 2000 x 2000 take 0.8 of the time in TF32 and 0.6 in bfloat16, of 4096 x 4096 0.6 and 0.35, and of
1024 x 1024 1.6 and 1.4.
"""


def product(x: Tensor, y: Tensor) -> Tensor:
    """Return X Y; a result of long rows may lie in memory with a margin beside it."""
    if _is_watched(x, y) or y.shape[-1] * y.element_size() % BOUNDARY == 0 == x.shape[-1] * x.element_size() % BOUNDARY:
        return x @ y
    if x.device.type == "cpu":
        return product_on_boundaries(x, y) if y.shape[-1] >= LONG and x.dtype == y.dtype else x @ y
    if x.device.type == "cuda" and _is_for_matrix_units(x, y) and min(*x.shape, y.shape[-1]) >= LARGE:
        return product_padded(x, y)
    return x @ y


def product_on_boundaries(x: Tensor, y: Tensor) -> Tensor:
    """Return X Y in rows that begin on boundaries."""
    columns = y.shape[-1]
    rows = x.new_empty(len(x), columns + _missing(columns, x))
    return torch.mm(x, y, out=rows[:, :columns])


def product_padded(x: Tensor, y: Tensor) -> Tensor:
    """Return X Y of both matrices padded with zeros, so that all rows that are read or written begin on boundaries."""
    rows, terms, columns = len(x), x.shape[-1], y.shape[-1]
    more_rows, more_terms, more_columns = (_missing(size, x) for size in (rows, terms, columns))
    wide = F.pad(x, (0, more_terms, 0, more_rows)) @ F.pad(y, (0, more_columns, 0, more_terms))
    return wide[:rows, :columns]


def _missing(size: int, like: Tensor) -> int:
    """Return how many numbers of a tensor's kind are missing to the next boundary."""
    return -size % (BOUNDARY // like.element_size())


def _is_watched(x: Tensor, y: Tensor) -> bool:
    """Return whether a product has to be made as it is written: for autograd, a subclass of tensors, or a tracer."""
    plain = type(x) is type(y) is Tensor and x.ndim == y.ndim == 2 and not torch.compiler.is_compiling()
    return not plain or (torch.is_grad_enabled() and (x.requires_grad or y.requires_grad))


def _is_for_matrix_units(x: Tensor, y: Tensor) -> bool:
    """Return whether a GPU has units for this product, as TF32 is set now."""
    if x.dtype != y.dtype:
        return False
    return x.element_size() == 2 or (x.dtype == torch.float32 and torch.backends.cuda.matmul.allow_tf32)
