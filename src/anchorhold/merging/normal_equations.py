r"""The point between several models, for one group of parameters.

.. math:: \theta = \mathrm{argmin} \sum_k c_k \langle \theta - \theta_k, Q_k(\theta - \theta_k)\rangle
    + \varepsilon \sum_k c_k |\theta - \theta_k|^2

With :math:`\bar\theta = \sum_k c_k\theta_k` and :math:`d = \theta - \bar\theta` that is
:math:`(\sum_k c_k Q_k + \varepsilon)\,d = \sum_k c_k Q_k(\theta_k - \bar\theta)`, which is what is solved: along a
direction that no form weighs, d is 0 and the result is the plain average. Q = 1 for all is that average everywhere, a
diagonal is Fisher merging (Matena and Raffel 2022, arXiv 2111.09832), and :math:`Q(D) = D A` is RegMean (Jin et al.
2023, arXiv 2212.09849). These have a closed form, as has one form beside models that have none; other sums have no
coordinates in common, and are solved by conjugate gradients.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from anchorhold.engine.reductions import Basis, Block, as_vector, in_shapes, joined, taken_apart
from anchorhold.errors import warn
from anchorhold.forms import DenseMatrix, DiagonalMatrix, KroneckerMatrix, Matrix, RotatedMatrix, SumMatrix
from anchorhold.forms.factors import Factor, as_factor, as_square, balance, divide, eigenbasis
from anchorhold.forms.sums import Linear, conjugate_gradients
from anchorhold.tensors.matrices import decomposed

TOLERANCE = 1e-8
"""The residual at which conjugate gradients stop, relative to the right-hand side."""
MOST_STEPS = 300
"""After which they stop in any case."""
UNSETTLED = 1e-4
"""The residual above which that is told."""
BARELY = 1e-12
"""Of the largest importance: what is less is rounding of 0, where nothing is weighed and nothing solved."""

Weights = Mapping[str, Tensor]


@dataclass(frozen=True)
class Pull:
    """What one model weighs a group of parameters with."""

    share: float
    """c of the model, of which all together are 1."""
    matrices: tuple[Matrix, ...] | None
    """Q, over blocks that have no parameter in common; ``None`` for 1."""
    scale: float = 1.0
    """What Q is multiplied with."""

    @property
    def factor(self) -> float:
        """By how much Q counts."""
        return self.share * self.scale

    def apply(self, d: Weights) -> dict[str, Tensor]:
        """Return c Q(D)."""
        if self.matrices is None:
            return {name: self.share * each for name, each in d.items()}
        return {name: self.factor * q for matrix in self.matrices for name, q in matrix.apply(d).items()}


def averaged(shares: Sequence[float], weights: Sequence[Weights]) -> dict[str, Tensor]:
    """Return the plain average by shares; models that have none are left out, whatever their weights are."""
    counted = [(c, own) for c, own in zip(shares, weights, strict=True) if c]
    if len(counted) == 1:
        return dict(counted[0][1])
    return {name: sum(c * own[name] for c, own in counted) for name in weights[0]}  # type: ignore[misc]


def solved(pulls: Sequence[Pull], weights: Sequence[Weights], damping: float) -> dict[str, Tensor]:
    """Return the point between the models' weights.

    Args:
        pulls: of each model.
        weights: each model's, by parameter, in the precision in which the result is to be found.
        damping: ε.
    """
    average = averaged([pull.share for pull in pulls], weights)
    counted = [(_positive(pull), own) for pull, own in zip(pulls, weights, strict=True) if pull.share]
    forms = [pull for pull, _ in counted if pull.matrices is not None]
    if len(counted) == 1 or not forms:
        return average
    b = _right_hand_side(counted, average)
    # What all directions are weighed with, and beside it every Q that is not 1.
    shift = damping + sum(pull.share for pull, _ in counted if pull.matrices is None)
    d = _in_closed_form(forms, b, shift)
    if d is None:
        d = _by_conjugate_gradients(forms, b, shift)
    return {name: each + d[name] for name, each in average.items()}


def _positive(pull: Pull) -> Pull:
    """Return products of two factors as their eigenvalues, none of which is below 0.

    Rounding leaves some there, and where one factor is large such a product is no smaller than the damping.
    """

    def positive(matrix: Matrix) -> Matrix:
        if isinstance(matrix, SumMatrix):
            return SumMatrix([positive(part) for part in matrix.parts])
        if isinstance(matrix, KroneckerMatrix) and matrix.g is not None and matrix.a is not None:
            return _as_rotated(matrix.block, [matrix])[0]
        return matrix

    return pull if pull.matrices is None else replace(pull, matrices=tuple(map(positive, pull.matrices)))


def _right_hand_side(counted: Sequence[tuple[Pull, Weights]], average: Weights) -> dict[str, Tensor]:
    """Return the sum of c Q(θ_k − θ̄)."""
    b = {name: torch.zeros_like(each) for name, each in average.items()}
    for pull, own in counted:
        for name, q in pull.apply({name: own[name] - average[name] for name in average}).items():
            b[name] = b[name] + q
    return b


def _in_closed_form(forms: Sequence[Pull], b: Weights, shift: float) -> dict[str, Tensor] | None:
    """Return (ΣcQ + shift)⁻¹B, or ``None`` where there is no closed form."""
    every = [matrix for pull in forms for matrix in pull.matrices or ()]
    if all(isinstance(matrix, DiagonalMatrix) for matrix in every):
        return _divided(forms, b, shift)
    if len(every) != len(forms) or len({matrix.block for matrix in every}) > 1:
        return None
    if len(forms) == 1 and not isinstance(every[0], SumMatrix):
        return every[0].scale(forms[0].factor).solve(b, shift)
    for side in "ag":
        if all(isinstance(matrix, KroneckerMatrix) and getattr(matrix, side) is None for matrix in every):
            return _one_sided(forms, b, shift, inputs=side == "g")
    if all(isinstance(matrix, DenseMatrix) for matrix in every):
        block = every[0].block
        h = torch.stack([pull.factor * matrix.h for pull, matrix in zip(forms, every, strict=True)]).sum(0)  # type: ignore[attr-defined]
        return in_shapes(block, _positive_solve(h, as_vector(block, b).unsqueeze(1), shift).squeeze(1))
    return None


def _divided(forms: Sequence[Pull], b: Weights, shift: float) -> dict[str, Tensor]:
    """Return B/(ΣcΩ + shift), nothing where that is 0."""
    found = {}
    for name, own in b.items():
        of_name = [
            pull.factor * matrix.omega
            for pull in forms
            for matrix in pull.matrices or ()
            if isinstance(matrix, DiagonalMatrix) and matrix.name == name
        ]
        total = torch.stack(of_name).sum(0) + shift
        found[name] = torch.where(total > 0, own / total, 0.0)
    return found


def _one_sided(forms: Sequence[Pull], b: Weights, shift: float, *, inputs: bool) -> dict[str, Tensor]:
    """Return the solution of D(ΣcA + shift) = B, or of (ΣcG + shift)D = B: one factor is 1 for all models."""
    matrices = [matrix for pull in forms for matrix in pull.matrices or () if isinstance(matrix, KroneckerMatrix)]
    block = matrices[0].block
    own = joined(block, b)
    size = block.size[1 if inputs else 0]
    sides = [as_factor(matrix.a if inputs else matrix.g) for matrix in matrices]
    total = _summed_factors([pull.factor for pull in forms], sides, size)
    if total is None:  # both factors are 1
        return {name: each / (shift + sum(pull.factor for pull in forms)) for name, each in b.items()}
    total = as_square(total, size)
    d = _positive_solve(total, own.mT, shift).mT if inputs else _positive_solve(total, own, shift)
    return taken_apart(block, d)


def _summed_factors(weights: Sequence[float], factors: Sequence[Factor], size: int) -> Factor:
    """Return a weighted sum of factors that are not 1: a matrix if one of them is, else a diagonal."""
    given = [(w, factor) for w, factor in zip(weights, factors, strict=True) if factor is not None]
    alike = len({factor.shape for _, factor in given}) == 1
    total: Factor = None
    for w, factor in given:
        own = w * (factor if alike else as_square(factor, size))
        total = own if total is None else total + own
    return total


def _positive_solve(h: Tensor, b: Tensor, shift: float) -> Tensor:
    """Return (H + shift)⁻¹B of a positive semi-definite H; nothing along directions where that is 0 up to rounding."""
    damped = h + shift * torch.eye(len(h), dtype=h.dtype, device=h.device)
    root, failed = decomposed(torch.linalg.cholesky_ex, damped)
    pivots = root.diagonal()
    rounding = len(h) * torch.finfo(h.dtype).eps * pivots.max() ** 2 if len(h) else 0.0
    if not bool(failed) and bool((pivots.square() > rounding).all()):
        found: Tensor = decomposed(lambda own: torch.cholesky_solve(b.to(own.device), own), root)
        return found
    vectors, values = eigenbasis(damped)
    assert vectors is not None and values is not None  # since it is a matrix
    return vectors @ divide(vectors.mT @ b, values.unsqueeze(1), 0.0)


def _by_conjugate_gradients(forms: Sequence[Pull], b: Weights, shift: float) -> dict[str, Tensor]:
    """Return (ΣcQ + shift)⁻¹B, preconditioned by the sum's diagonal in coordinates in which each is nearly diagonal."""
    precondition = _preconditioner(forms, b, shift)

    def apply(d: Weights) -> dict[str, Tensor]:
        found = {name: shift * each for name, each in d.items()}
        for pull in forms:
            for name, q in pull.apply(d).items():
                found[name] = found[name] + q
        return found

    found = conjugate_gradients(apply, b, precondition=precondition, tolerance=TOLERANCE, most_steps=MOST_STEPS)
    if found.residual > UNSETTLED:
        warn(
            f"Merging {', '.join(map(repr, list(b)[:2]))}{' and others' if len(b) > 2 else ''} stopped after "
            f"{found.steps} steps at a residual of {found.residual:.1g}, so directions of little importance are not "
            "settled. Give a larger damping=."
        )
    return found.x


def _preconditioner(forms: Sequence[Pull], b: Weights, shift: float) -> Linear:
    """Return something near to the inverse of ΣcQ + shift."""
    blocks = {matrix.block for pull in forms for matrix in pull.matrices or () if matrix.block.is_matrix}
    if len(blocks) == 1 and set((block := blocks.pop()).parameters) == set(b):
        each = [_as_rotated(block, pull.matrices or ()) for pull in forms]
        if all(each):
            turned = [(pull.factor, part) for pull, parts in zip(forms, each, strict=True) for part in parts]
            return _in_common_coordinates(block, turned, shift)
    diagonals: dict[str, Tensor] = {}
    for pull in forms:
        for matrix in pull.matrices or ():
            for name, own in matrix.diagonal().items():
                diagonals[name] = diagonals.get(name, 0.0) + pull.factor * own
    most = max(float(own.max()) for own in diagonals.values() if own.numel())
    inverses = {name: _inverse(own + shift, most) for name, own in diagonals.items()}
    return lambda r: {name: inverses[name] * each for name, each in r.items()}


def _inverse(values: Tensor, most: float) -> Tensor:
    """Return 1/x, nothing where x is rounding of 0."""
    return torch.where(values > BARELY * most, 1 / values, 0.0)


def _in_common_coordinates(block: Block, turned: Sequence[tuple[float, RotatedMatrix]], shift: float) -> Linear:
    """Return the inverse of a sum's diagonal in the eigenbasis of all factors' sums."""
    halves = [(factor**0.5, balance(*matrix.factors)) for factor, matrix in turned]
    roots = [root for root, _ in halves]
    sides = [_summed_factors(roots, [pair[k] for _, pair in halves], block.size[k]) for k in (0, 1)]
    (u_g, l_g), (u_a, l_a) = map(eigenbasis, sides, block.size)
    basis = Basis(u_g, u_a)
    s = torch.stack([factor * matrix.diagonal_in_basis(basis) for factor, matrix in turned]).sum(0) + shift
    return RotatedMatrix(block, _inverse(s, float(s.max())), basis, Basis(l_g, l_a)).apply


def _as_rotated(block: Block, matrices: Sequence[Matrix]) -> list[RotatedMatrix]:
    """Return what a layer's Q is the sum of, each a diagonal in some coordinates; nothing of other kinds."""
    if len(matrices) == len(block.parameters) and all(isinstance(matrix, DiagonalMatrix) for matrix in matrices):
        omega = {name: own for matrix in matrices for name, own in matrix.diagonal().items()}
        return [RotatedMatrix(block, joined(block, omega), Basis(None, None), Basis(None, None))]
    if len(matrices) != 1:
        return []
    (matrix,) = matrices
    if isinstance(matrix, SumMatrix):
        return [each for part in matrix.parts for each in _as_rotated(block, [part])]
    if isinstance(matrix, KroneckerMatrix):
        return [matrix.to_rotated()]
    return [matrix] if isinstance(matrix, RotatedMatrix) else []
