r"""Coordinates of one side of a layer: what its vectors become in the basis of a factor.

A basis is one of four. ``None``: vectors stay as they are. A square matrix: its columns. ``[blocks, side, side]``: the
columns of a block-diagonal matrix (:mod:`anchorhold.tensors.matrices`). A matrix of fewer columns than rows,
*thin*: these few directions, and all that is at right angles to them as one more, **the rest**. A vector then becomes
:math:`(U^T v,\; v - UU^T v)`, as long as it was, and every direction of the rest counts alike: a list of numbers along
such coordinates has one for each column, and one for the rest.

So whatever rounding does to U, what is taken into coordinates, multiplied by numbers of at least 0 and brought back is
positive semi-definite.
"""

import torch
from torch import Tensor

from anchorhold.tensors.matrices import as_matrix, times_blocks

Coordinates = Tensor | None


def is_thin(u: Coordinates) -> bool:
    """Whether a basis has a rest."""
    return u is not None and u.ndim == 2 and u.shape[0] > u.shape[1]


def along(d: Tensor, u: Coordinates) -> Tensor:
    """Return the rows of a matrix in coordinates of the inputs."""
    if u is None:
        return d
    if u.ndim == 3:
        return times_blocks(d, u)
    inside = d @ u
    return torch.cat([inside, d - inside @ u.mT], -1) if is_thin(u) else inside


def back(turned: Tensor, u: Coordinates) -> Tensor:
    """Return what :func:`along` has turned; of what no matrix was turned into, the nearest that one was."""
    if u is None:
        return turned
    if u.ndim == 3:
        return times_blocks(turned, u.mT)
    if not is_thin(u):
        return turned @ u.mT
    inside, rest = turned[..., : u.shape[1]], turned[..., u.shape[1] :]
    return (inside - rest @ u) @ u.mT + rest


def along_outputs(d: Tensor, u: Coordinates) -> Tensor:
    """Return the columns of a matrix in coordinates of the outputs."""
    return u.mT @ d if u is not None and u.ndim == 2 and not is_thin(u) else along(d.mT, u).mT


def back_outputs(turned: Tensor, u: Coordinates) -> Tensor:
    """Return what :func:`along_outputs` has turned."""
    return u @ turned if u is not None and u.ndim == 2 and not is_thin(u) else back(turned.mT, u).mT


def spread(values: Tensor, u: Coordinates) -> Tensor:
    """Return one number for each coordinate, along the last dimension: the rest's for every one of its own."""
    if u is None or not is_thin(u):
        return values
    return torch.cat([values[..., :-1], values[..., -1:].expand(*values.shape[:-1], len(u))], -1)


def directions(values: Tensor, u: Coordinates) -> Tensor:
    """Return for how many directions each of these numbers stands, along the last dimension."""
    found = torch.ones(values.shape[-1], dtype=values.dtype, device=values.device)
    if u is not None and is_thin(u):
        found[-1] = len(u) - u.shape[1]
    return found


def cut(values: Tensor, rank: int) -> Tensor:
    """Return numbers along eigenvectors, the largest last, as numbers along the last few and the mean of the others."""
    rest = values[..., : values.shape[-1] - rank]
    return torch.cat([values[..., values.shape[-1] - rank :], rest.mean(-1, keepdim=True)], -1)


def cut_basis(u: Tensor, rank: int) -> Tensor:
    """Return the last few columns of a basis."""
    return u[:, len(u) - rank :].contiguous()


def shares(to: Coordinates, of: Coordinates) -> Tensor | None:
    r"""Return M, by which the diagonal of a matrix goes from some coordinates to others: s′ = M s.

    Between bases it is R∘R with :math:`R = U^T U_{here}`. With a rest, its directions' shares are what is missing to 1,
    and their mean where it is the rest of the new ones. ``None`` where both stay as they are.
    """
    if to is None and of is None:
        return None
    if is_thin(to) or is_thin(of):
        return _with_rests(_whole(to), _whole(of))
    if to is not None and of is not None and to.ndim != of.ndim:
        to, of = _whole(to), _whole(of)
    return _turning(to, of).square()


def _with_rests(to: Coordinates, of: Coordinates) -> Tensor:
    found = _turning(to, of).square()
    counts = torch.ones_like(found[0])
    if of is not None and is_thin(of):
        found = torch.cat([found, 1 - found.sum(1, keepdim=True)], 1)
        counts = torch.cat([counts, counts.new_tensor([len(of) - of.shape[1]])])
    if to is not None and is_thin(to):
        rest = (counts - found.sum(0)) / (len(to) - to.shape[1])
        found = torch.cat([found, rest.unsqueeze(0)])
    return found.clamp(min=0)


def _turning(to: Coordinates, of: Coordinates) -> Tensor:
    """Return R = UᵀU_here, by which coordinates change."""
    if to is not None and of is not None:
        return to.mT @ of
    found = of if to is None else to.mT
    assert found is not None  # since not both stay as they are
    return found


def _whole(u: Coordinates) -> Coordinates:
    """Return a basis as one matrix: of blocks that do not come out even, without what they are filled up with."""
    if u is None or u.ndim == 2:
        return u
    filled = int((u[-1].square().sum(0) == 0).sum())
    return as_matrix(u, len(u) * u.shape[-1] - filled)
