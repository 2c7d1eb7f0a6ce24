r"""A layer's two factors, G of outputs and A of inputs: a matrix, one of blocks, a diagonal (a vector) or 1 (``None``).

A factor may also be kept as its eigenvectors and eigenvalues, :class:`Spectrum`: all of them, which bears rounding, or
the largest ones and the mean of the rest, which takes less.

Their product stands for :math:`D \mapsto G D A`, so a number may go from one to the other: factors of several tasks can
be compared only once that is settled, which :func:`balanced` does.
"""

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from anchorhold.forms.coordinates import along, back, cut, cut_basis, directions, is_thin, shares, spread
from anchorhold.tensors.finite import is_finite
from anchorhold.tensors.matrices import (
    along_diagonal,
    as_matrix,
    block_identity,
    decomposed,
    in_double,
    last_side,
    products_in,
    times_blocks,
)

Factor = Tensor | None
ORTHONORMAL = 1e-4
"""How far products of eigenvectors may be from 0 and 1: single precision comes within a hundredth of it."""


class Spectrum(NamedTuple):
    """A factor as its eigenvectors and eigenvalues; along a thin basis, the last one is that of the whole rest."""

    vectors: Tensor
    values: Tensor

    def mapped(self, change: Callable[[Tensor], Tensor]) -> "Spectrum":
        """Return the same with both changed."""
        return Spectrum(change(self.vectors), change(self.values))


KeptFactor = Factor | Spectrum


def times(g: KeptFactor, d: Tensor, a: KeptFactor) -> Tensor:
    """Return G D A."""
    if isinstance(g, Spectrum):
        d = _times_spectrum(d.mT, g).mT
    elif g is not None:
        d = g @ d if g.ndim == 2 else times_blocks(d.mT, g.mT).mT if g.ndim == 3 else g.unsqueeze(-1) * d
    if isinstance(a, Spectrum):
        return _times_spectrum(d, a)
    if a is not None:
        d = d @ a if a.ndim == 2 else times_blocks(d, a) if a.ndim == 3 else d * a
    return d


def _times_spectrum(d: Tensor, factor: Spectrum) -> Tensor:
    u = factor.vectors.to(d.dtype)
    return back(along(d, u) * spread(factor.values.to(d.dtype), u), u)


def diagonal_of(factor: KeptFactor, size: int, like: Tensor) -> Tensor:
    """Return the diagonal of a factor."""
    if factor is None:
        return like.new_ones(size)
    if isinstance(factor, Spectrum):
        return times(shares(None, factor.vectors), factor.values.unsqueeze(1), None).squeeze(1)
    if factor.ndim == 3:
        return along_diagonal(factor, size)
    return factor if factor.ndim == 1 else factor.diagonal()


def balanced(g: Factor, a: Factor) -> tuple[Factor, Factor]:
    """Return factors of the same product that have the same trace; with one that is 1, there is nothing to choose."""
    if g is None or a is None:
        return g, a
    ratio = (trace_of(a) / trace_of(g)).sqrt()
    ratio = torch.where(ratio.isfinite() & (ratio > 0), ratio, torch.ones_like(ratio))  # of a layer without gradients
    return g * ratio, a / ratio


def eigenbasis(factor: KeptFactor, size: int | None = None) -> tuple[Factor, Factor]:
    """Return the eigenvectors of a factor, in columns, and its eigenvalues; no vectors where it is diagonal.

    Args:
        factor: the factor.
        size: how large it is, where that cannot be seen: of blocks, the last may be filled up.
    """
    if isinstance(factor, Spectrum):
        return factor.vectors, factor.values
    if factor is None or factor.ndim == 1:
        return None, factor
    if factor.ndim == 3:
        return _eigenbasis_of_blocks(factor, len(factor) * factor.shape[-1] if size is None else size)
    factor = factor.to(torch.promote_types(factor.dtype, torch.float32))
    try:
        values, vectors = decomposed(torch.linalg.eigh, factor)
        # Some versions give NaN where others say that they failed, or vectors that are not orthonormal.
        found = is_finite(values) and is_finite(vectors) and _is_orthonormal(vectors)
    except torch.linalg.LinAlgError:  # type: ignore[attr-defined]
        found = False
    if not found:  # single precision may not converge where many eigenvalues are nearly equal
        values, vectors = in_double(torch.linalg.eigh, factor)
    # In rows, as a saved state gives them back, so that products have the same bits.
    return vectors.contiguous(), values.clamp(min=0)


def largest_of(factor: KeptFactor, like: Tensor) -> Tensor:
    """Return the largest eigenvalue of a factor, without its eigenvectors.

    Args:
        factor: the factor.
        like: a tensor of the type and place of a factor that is 1.
    """
    if factor is None:
        return like.new_ones(())
    if isinstance(factor, Spectrum) or factor.ndim == 1:
        return (factor.values if isinstance(factor, Spectrum) else factor).amax()
    factor = factor.to(torch.promote_types(factor.dtype, torch.float32))
    try:
        values: Tensor = decomposed(torch.linalg.eigvalsh, factor)
        found = is_finite(values)
    except torch.linalg.LinAlgError:  # type: ignore[attr-defined]
        found = False
    if not found:  # as for all of them
        (values,) = in_double(lambda wide: (torch.linalg.eigvalsh(wide),), factor)
    return values.amax().clamp(min=0)


def _is_orthonormal(vectors: Tensor) -> bool:
    """Whether vectors are orthonormal up to rounding.

    On a GPU, weights of units that are always 0 grew by 3 % a step in one of three networks, as they would if those of
    single precision were off by as much.
    """
    with products_in("float32", vectors.device):
        products = vectors.mT @ vectors
    products.diagonal().sub_(1)
    return bool(products.abs().max() <= ORTHONORMAL) if products.numel() else True


def _eigenbasis_of_blocks(factor: Tensor, size: int) -> tuple[Tensor, Tensor]:
    """Return the eigenvectors of each block, as blocks, and all eigenvalues one block after the other."""
    whole = torch.promote_types(factor.dtype, torch.float32)
    vectors, values = torch.zeros_like(factor, dtype=whole), []
    for number, block in enumerate(factor):
        side = last_side(factor, size) if number == len(factor) - 1 else len(block)
        u, found = eigenbasis(block[:side, :side])
        assert u is not None and found is not None  # since it is a matrix
        vectors[number, :side, :side] = u
        values.append(found)
    return vectors, torch.cat(values)


def thin(vectors: Factor, values: Factor, rank: int) -> tuple[Factor, Factor]:
    """Return the directions of the largest eigenvalues, and the mean of the others as one more; all of a few."""
    if vectors is None or values is None or vectors.ndim != 2 or is_thin(vectors) or rank >= len(vectors):
        return vectors, values
    return cut_basis(vectors, rank), cut(values, rank)


def composed(vectors: Factor, values: Factor) -> Factor:
    """Return the factor that :func:`eigenbasis` has taken apart; of a thin one, all of it."""
    if vectors is None or values is None:
        return values
    if vectors.ndim == 3:
        filled = values.new_zeros(len(vectors) * vectors.shape[-1])
        filled[: len(values)] = values
        return (vectors * filled.view(len(vectors), 1, -1)) @ vectors.mT
    if is_thin(vectors):
        rest = values[-1] * torch.eye(len(vectors), dtype=vectors.dtype, device=vectors.device)
        return (vectors * (values[:-1] - values[-1])) @ vectors.mT + rest
    return (vectors * values) @ vectors.mT


def whole(factor: KeptFactor) -> Factor:
    """Return a factor that is kept as its spectrum as it was."""
    return composed(*factor) if isinstance(factor, Spectrum) else factor


def as_square(factor: Tensor, size: int) -> Tensor:
    """Return a diagonal or blocks as a matrix."""
    return factor.diag() if factor.ndim == 1 else as_matrix(factor, size) if factor.ndim == 3 else factor


def trace_of(factor: Tensor | Spectrum) -> Tensor:
    """Return the sum of a factor's eigenvalues."""
    if isinstance(factor, Spectrum):
        return (factor.values * directions(factor.values, factor.vectors)).sum()
    if factor.ndim == 3:
        return factor.diagonal(dim1=1, dim2=2).sum()
    return factor.trace() if factor.ndim == 2 else factor.sum()


def damped(factor: Factor, share: float, size: int | None = None) -> Factor:
    """Return a factor with a share of its mean eigenvalue added to each; ``size`` as in :func:`eigenbasis`."""
    if factor is None or not share:
        return factor
    if factor.ndim == 3:
        size = len(factor) * factor.shape[-1] if size is None else size
        return factor + share * trace_of(factor) / size * block_identity(factor, size)
    mean = share * trace_of(factor) / len(factor)
    return factor + mean if factor.ndim == 1 else factor + mean * torch.eye(len(factor)).to(factor)


def divided(turned: Tensor, values: Tensor, damping: float) -> Tensor:
    """Return coordinates divided by their eigenvalues and a damping; nothing where these are 0 up to rounding."""
    sums = values + damping
    rounding = len(sums) * torch.finfo(sums.dtype).eps * sums.max()
    return torch.where(sums > rounding, turned / sums, 0.0)
