"""Sums of vvᵀ over many vectors v: half of the products suffice, and vectors stay where they lie in memory."""

from torch import Tensor

PANEL = 128
"""How many columns of a sum are made at once on a CPU, from the diagonal down: fewer are slow, more leave less out."""


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
    """Whether vectors lie as matrices of size × positions, as a convolution leaves them, with many positions."""
    if vectors.ndim < 3:
        return False
    positions, size = vectors.shape[-2:]
    return positions >= size and vectors.stride()[-2:] == (1, positions)
