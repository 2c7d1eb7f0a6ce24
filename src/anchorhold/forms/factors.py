r"""A layer's two factors, G of outputs and A of inputs, and their eigenvectors.

A factor is a matrix, ``[blocks, side, side]`` for a block-diagonal one, a vector for a diagonal, or ``None`` for the
identity. It may also be kept as a :class:`Spectrum`, its eigenvectors and eigenvalues: all of them, which stays
positive semi-definite when it is rounded, or the largest ones and the mean of the rest, which takes less memory.

A product stands for :math:`D \mapsto G D A`, so a number may move from one factor to the other. Factors of several
tasks can be compared only once :func:`balance` has settled that number.
"""

from typing import NamedTuple

import torch
from torch import Tensor

from anchorhold.forms.coordinates import (
    expand,
    from_basis,
    is_thin,
    multiplicities,
    squared_overlaps,
    to_basis,
    truncate_values,
)
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
from anchorhold.tensors.products import product
from anchorhold.tensors.sharding import is_finite

Factor = Tensor | None

ORTHONORMAL = 1e-4
"""The largest error of UᵀU for eigenvectors U; that of float32 is a hundredth of it.

On a GPU, weights of units that are always 0 grew by 3 % a step in one of three networks, as they would if eigenvectors
were not orthonormal by that much.
"""

PROBES = 32
"""Vectors by which that error is looked for: one that is that large goes unseen once in 2³² times."""


class Spectrum(NamedTuple):
    """A factor as its eigenvectors and eigenvalues; with a thin basis, the last eigenvalue is that of the rest."""

    vectors: Tensor
    values: Tensor


KeptFactor = Factor | Spectrum


def times(g: KeptFactor, d: Tensor, a: KeptFactor) -> Tensor:
    """Return G D A."""
    if isinstance(g, Spectrum):
        d = _times_spectrum(d.mT, g).mT
    elif g is not None:
        d = product(g, d) if g.ndim == 2 else times_blocks(d.mT, g.mT).mT if g.ndim == 3 else g.unsqueeze(-1) * d
    if isinstance(a, Spectrum):
        return _times_spectrum(d, a)
    if a is not None:
        d = product(d, a) if a.ndim == 2 else times_blocks(d, a) if a.ndim == 3 else d * a
    return d


def _times_spectrum(d: Tensor, factor: Spectrum) -> Tensor:
    """Return D U Λ Uᵀ, in D's dtype."""
    u = factor.vectors.to(d.dtype)
    return from_basis(to_basis(d, u) * expand(factor.values.to(d.dtype), u), u)


def diagonal_of(factor: KeptFactor, size: int, like: Tensor) -> Tensor:
    """Return the diagonal of a factor of some size, like a tensor if the factor is the identity."""
    if factor is None:
        return like.new_ones(size)
    if isinstance(factor, Spectrum):
        return times(squared_overlaps(None, factor.vectors), factor.values.unsqueeze(1), None).squeeze(1)
    if factor.ndim == 3:
        return along_diagonal(factor, size)
    return factor if factor.ndim == 1 else factor.diagonal()


def trace_of(factor: Tensor | Spectrum) -> Tensor:
    """Return the sum of a factor's eigenvalues."""
    if isinstance(factor, Spectrum):
        return (factor.values * multiplicities(factor.values, factor.vectors)).sum()
    if factor.ndim == 3:
        return factor.diagonal(dim1=1, dim2=2).sum()
    return factor.trace() if factor.ndim == 2 else factor.sum()


def largest_of(factor: KeptFactor, like: Tensor) -> Tensor:
    """Return the largest eigenvalue of a factor, like a tensor if the factor is the identity."""
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
    if not found:  # as in eigenbasis()
        (values,) = in_double(lambda wide: (torch.linalg.eigvalsh(wide),), factor)
    return values.amax().clamp(min=0)


def balance(g: Factor, a: Factor) -> tuple[Factor, Factor]:
    """Return factors of the same product that have the same trace; as they are if one is the identity."""
    if g is None or a is None:
        return g, a
    ratio = (trace_of(a) / trace_of(g)).sqrt()
    ratio = torch.where(ratio.isfinite() & (ratio > 0), ratio, torch.ones_like(ratio))  # of a layer without gradients
    return g * ratio, a / ratio


def eigenbasis(factor: KeptFactor, size: int | None = None) -> tuple[Factor, Factor]:
    """Return a factor's eigenvectors, in columns, and its eigenvalues; ``None`` for the vectors of a diagonal.

    Args:
        factor: the factor.
        size: its size, which a padded last block does not show; by default, without padding.
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
        # Some versions return NaN where others raise an error, or vectors that are not orthonormal.
        found = is_finite(values) and is_finite(vectors) and _is_orthonormal(vectors)
    except torch.linalg.LinAlgError:  # type: ignore[attr-defined]
        found = False
    if not found:  # float32 may not converge where many eigenvalues are nearly equal
        values, vectors = in_double(torch.linalg.eigh, factor)
    # In rows, as a saved state is read, so that products have the same bits after loading.
    return vectors.contiguous(), values.clamp(min=0)


def _is_orthonormal(vectors: Tensor) -> bool:
    """Return whether UᵀU is the identity up to ``ORTHONORMAL``."""
    if len(vectors) > 4 * PROBES and _seems_orthonormal(vectors):
        return True
    with products_in("float32", vectors.device):
        products = vectors.mT @ vectors
    products.diagonal().sub_(1)  # in place: the product is nobody else's
    return bool(products.abs().max() <= ORTHONORMAL) if products.numel() else True


def _seems_orthonormal(vectors: Tensor) -> bool:
    """Return whether (UᵀU − 1)z is small for a few vectors of signs z, for a fraction of the time of UᵀU.

    An error of one entry shows there at no less than its size with an even chance at least: whatever the other entries
    of its row add up to, one of its two signs adds to that. Small errors may add up to a large one.
    """
    signs = torch.randint(2, (len(vectors), PROBES), generator=torch.Generator().manual_seed(0)).mul_(2).sub_(1)
    signs = signs.to(vectors.device, vectors.dtype)
    with products_in("float32", vectors.device):
        return bool((vectors.mT @ (vectors @ signs) - signs).abs().max() <= ORTHONORMAL)


def _eigenbasis_of_blocks(factor: Tensor, size: int) -> tuple[Tensor, Tensor]:
    """Return the eigenvectors of each block, as blocks, and all eigenvalues, one block after the other."""
    single = torch.promote_types(factor.dtype, torch.float32)
    vectors, values = torch.zeros_like(factor, dtype=single), []
    for number, block in enumerate(factor):
        side = last_side(factor, size) if number == len(factor) - 1 else len(block)
        u, found = eigenbasis(block[:side, :side])
        assert u is not None and found is not None  # since it is a matrix
        vectors[number, :side, :side] = u
        values.append(found)
    return vectors, torch.cat(values)


def truncate(vectors: Factor, values: Factor, rank: int) -> tuple[Factor, Factor]:
    """Return the eigenvectors of the largest eigenvalues, and the mean of the other eigenvalues as one more.

    Blocks, a diagonal, and bases of no more columns stay as they are.
    """
    if vectors is None or values is None or vectors.ndim != 2 or is_thin(vectors) or rank >= len(vectors):
        return vectors, values
    return vectors[:, len(vectors) - rank :].contiguous(), truncate_values(values, rank)


def recompose(vectors: Factor, values: Factor) -> Factor:
    """Return U Λ Uᵀ, the factor of which :func:`eigenbasis` returned U and Λ."""
    if vectors is None or values is None:
        return values
    if vectors.ndim == 3:
        padded = values.new_zeros(len(vectors) * vectors.shape[-1])
        padded[: len(values)] = values
        return (vectors * padded.view(len(vectors), 1, -1)) @ vectors.mT
    if is_thin(vectors):
        rest = values[-1] * torch.eye(len(vectors), dtype=vectors.dtype, device=vectors.device)
        return (vectors * (values[:-1] - values[-1])) @ vectors.mT + rest
    return (vectors * values) @ vectors.mT


def as_factor(factor: KeptFactor) -> Factor:
    """Return a factor that may be kept as its spectrum as a tensor."""
    return recompose(*factor) if isinstance(factor, Spectrum) else factor


def as_square(factor: Tensor, size: int) -> Tensor:
    """Return a diagonal or blocks as a matrix."""
    return factor.diag() if factor.ndim == 1 else as_matrix(factor, size) if factor.ndim == 3 else factor


def damp(factor: Factor, share: float, size: int | None = None) -> Factor:
    """Return a factor with a share of its mean eigenvalue added to each; ``size`` as in :func:`eigenbasis`."""
    if factor is None or not share:
        return factor
    if factor.ndim == 3:
        size = len(factor) * factor.shape[-1] if size is None else size
        return factor + share * trace_of(factor) / size * block_identity(factor, size)
    mean = share * trace_of(factor) / len(factor)
    return factor + mean if factor.ndim == 1 else factor + mean * torch.eye(len(factor)).to(factor)


def divide(turned: Tensor, values: Tensor, damping: float) -> Tensor:
    """Return coordinates divided by λ + damping, 0 where that is 0 up to rounding."""
    sums = values + damping
    rounding = len(sums) * torch.finfo(sums.dtype).eps * sums.max()
    return torch.where(sums > rounding, turned / sums, 0.0)
