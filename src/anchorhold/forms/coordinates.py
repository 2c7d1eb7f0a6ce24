r"""Coordinates of one side of a layer: vectors of outputs or inputs in the eigenbasis of a factor.

A basis is one of four:

- ``None``, the identity;
- a square matrix, whose columns are the basis;
- ``[blocks, side, side]``, a block-diagonal matrix (:mod:`anchorhold.tensors.matrices`);
- a matrix of fewer columns than rows, *thin*: these directions, and all that is orthogonal to them as one more, **the
  rest**. A vector becomes :math:`(U^T v,\; v - UU^T v)`, as long as it was plus the columns. A list of numbers along
  such coordinates has one for each column and one for the whole rest.

Whatever rounding does to U, a map that goes to such coordinates, multiplies by numbers of at least 0 and comes back by
the transpose is positive semi-definite.
"""

import torch
from torch import Tensor

from anchorhold.tensors.matrices import as_matrix, times_blocks
from anchorhold.tensors.products import product

Coordinates = Tensor | None


def is_thin(u: Coordinates) -> bool:
    """Return whether a basis has a rest."""
    return u is not None and u.ndim == 2 and u.shape[0] > u.shape[1]


def to_basis(d: Tensor, u: Coordinates) -> Tensor:
    """Return D U: the rows of a matrix in a basis of the inputs."""
    if u is None:
        return d
    if u.ndim == 3:
        return times_blocks(d, u)
    inside = product(d, u)
    return torch.cat([inside, d - inside @ u.mT], -1) if is_thin(u) else inside


def from_basis(turned: Tensor, u: Coordinates) -> Tensor:
    """Return the rows that have some coordinates, undoing :func:`to_basis`; of a rest, its part orthogonal to U."""
    if u is None:
        return turned
    if u.ndim == 3:
        return times_blocks(turned, u.mT)
    if not is_thin(u):
        return product(turned, u.mT)
    inside, rest = turned[..., : u.shape[1]], turned[..., u.shape[1] :]
    return (inside - rest @ u) @ u.mT + rest


def outputs_to_basis(d: Tensor, u: Coordinates) -> Tensor:
    """Return Uᵀ D: the columns of a matrix in a basis of the outputs."""
    return product(u.mT, d) if u is not None and u.ndim == 2 and not is_thin(u) else to_basis(d.mT, u).mT


def outputs_from_basis(turned: Tensor, u: Coordinates) -> Tensor:
    """Return the columns that have some coordinates, undoing :func:`outputs_to_basis`."""
    return product(u, turned) if u is not None and u.ndim == 2 and not is_thin(u) else from_basis(turned.mT, u).mT


def expand(values: Tensor, u: Coordinates) -> Tensor:
    """Return one number for each coordinate, along the last dimension: the rest's number for all of the rest."""
    if u is None or not is_thin(u):
        return values
    return torch.cat([values[..., :-1], values[..., -1:].expand(*values.shape[:-1], len(u))], -1)


def multiplicities(values: Tensor, u: Coordinates) -> Tensor:
    """Return the number of orthogonal directions that each number along the last dimension stands for."""
    found = torch.ones(values.shape[-1], dtype=values.dtype, device=values.device)
    if u is not None and is_thin(u):
        found[-1] = len(u) - u.shape[1]
    return found


def truncate_values(values: Tensor, rank: int) -> Tensor:
    """Return the last few of some numbers, and the mean of the others as one more."""
    rest = values[..., : values.shape[-1] - rank]
    return torch.cat([values[..., values.shape[-1] - rank :], rest.mean(-1, keepdim=True)], -1)


def squared_overlaps(to: Coordinates, of: Coordinates) -> Tensor | None:
    r"""Return M, by which the diagonal of a matrix goes from one basis to another: s′ = M s.

    Between bases it is R∘R with :math:`R = U_{to}^T U_{of}`. With a rest, the share of its directions is what is
    missing to 1, or their mean if the rest is the new basis's. ``None`` stands for M = 1, between two identities.
    """
    if to is None and of is None:
        return None
    if not is_thin(to) and not is_thin(of):
        if to is not None and of is not None and to.ndim != of.ndim:
            to, of = _as_matrix(to), _as_matrix(of)
        return _overlaps(to, of).square()
    to, of = _as_matrix(to), _as_matrix(of)
    found = _overlaps(to, of).square()
    counts = torch.ones_like(found[0])
    if of is not None and is_thin(of):
        found = torch.cat([found, 1 - found.sum(1, keepdim=True)], 1)
        counts = torch.cat([counts, counts.new_tensor([len(of) - of.shape[1]])])
    if to is not None and is_thin(to):
        rest = (counts - found.sum(0)) / (len(to) - to.shape[1])
        found = torch.cat([found, rest.unsqueeze(0)])
    return found.clamp(min=0)  # rounding leaves shares of 0 below it


def _overlaps(to: Coordinates, of: Coordinates) -> Tensor:
    """Return R = U_toᵀ U_of."""
    if to is not None and of is not None:
        return to.mT @ of
    found = of if to is None else to.mT
    assert found is not None  # since one of both is no identity
    return found


def _as_matrix(u: Coordinates) -> Coordinates:
    """Return a basis of blocks as one matrix, without the padding of the last block."""
    if u is None or u.ndim == 2:
        return u
    padding = int((u[-1].square().sum(0) == 0).sum())
    return as_matrix(u, len(u) * u.shape[-1] - padding)
