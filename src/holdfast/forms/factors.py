r"""A layer's two factors, G of outputs and A of inputs, each a matrix, a diagonal (a vector) or 1 (``None``).

Their product stands for :math:`D \mapsto G D A`, so a number may go from one to the other: factors of several tasks can
be compared only once that is settled, which :func:`balanced` does.
"""

import torch
from torch import Tensor

from holdfast.tensors.finite import is_finite
from holdfast.tensors.storage import widest_dtype

Factor = Tensor | None


def times(g: Factor, d: Tensor, a: Factor) -> Tensor:
    """Return G D A."""
    if g is not None:
        d = g @ d if g.ndim == 2 else g.unsqueeze(-1) * d
    if a is not None:
        d = d @ a if a.ndim == 2 else d * a
    return d


def diagonal_of(factor: Factor, size: int, like: Tensor) -> Tensor:
    """Return the diagonal of a factor."""
    if factor is None:
        return like.new_ones(size)
    return factor if factor.ndim == 1 else factor.diagonal()


def balanced(g: Factor, a: Factor) -> tuple[Factor, Factor]:
    """Return factors of the same product that have the same trace; with one that is 1, there is nothing to choose."""
    if g is None or a is None:
        return g, a
    ratio = (trace_of(a) / trace_of(g)).sqrt()
    ratio = torch.where(ratio.isfinite() & (ratio > 0), ratio, torch.ones_like(ratio))  # of a layer without gradients
    return g * ratio, a / ratio


def eigenbasis(factor: Factor) -> tuple[Factor, Factor]:
    """Return the eigenvectors of a factor, in columns, and its eigenvalues; no vectors where it is diagonal."""
    if factor is None or factor.ndim == 1:
        return None, factor
    factor = factor.to(torch.promote_types(factor.dtype, torch.float32))
    try:
        values, vectors = torch.linalg.eigh(factor)
        found = is_finite(values) and is_finite(vectors)  # some versions give NaN where others say that they failed
    except torch.linalg.LinAlgError:  # type: ignore[attr-defined]
        found = False
    if not found:  # single precision may not converge where many eigenvalues are nearly equal
        values, vectors = (each.to(factor.dtype) for each in torch.linalg.eigh(factor.to(widest_dtype(factor.device))))
    # In rows, as a saved state gives them back, so that products have the same bits.
    return vectors.contiguous(), values.clamp(min=0)


def composed(vectors: Factor, values: Factor) -> Factor:
    """Return the factor that :func:`eigenbasis` has taken apart."""
    return values if vectors is None or values is None else (vectors * values) @ vectors.mT


def trace_of(factor: Tensor) -> Tensor:
    """Return the sum of a factor's eigenvalues."""
    return factor.trace() if factor.ndim == 2 else factor.sum()


def damped(factor: Factor, share: float) -> Factor:
    """Return a factor with a share of its mean eigenvalue added to each."""
    if factor is None or not share:
        return factor
    mean = share * trace_of(factor) / len(factor)
    return factor + mean if factor.ndim == 1 else factor + mean * torch.eye(len(factor)).to(factor)


def divided(turned: Tensor, values: Tensor, damping: float) -> Tensor:
    """Return coordinates divided by their eigenvalues and a damping; nothing where these are 0 up to rounding."""
    sums = values + damping
    rounding = len(sums) * torch.finfo(sums.dtype).eps * sums.max()
    return torch.where(sums > rounding, turned / sums, 0.0)
