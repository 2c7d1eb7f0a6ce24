r"""A product of two factors for each layer, :math:`Q(D) = G D A`.

Kronecker-factored Laplace, Ritter, Botev and Barber 2018 (arXiv 1805.07810), with the factors of K-FAC, Martens and
Grosse 2015 (arXiv 1503.05671). With G = 1 it is the quadratic form of OWM (Zeng et al. 2019, arXiv 1810.01256), GPM
(Saha et al. 2021, arXiv 2103.09762) and RegMean (Jin et al. 2023, arXiv 2212.09849).

A sum of such products is none. There are four ways to go on: keep all of them (exact), or one product whose factors are
weighted sums. Whatever the weights, that holds products of one task's G with another's A, so it is scaled to the trace
of the exact sum.
"""

import dataclasses
import math
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property, partial
from typing import ClassVar, Literal, get_args

import torch
from torch import Tensor, nn

from holdfast.forms.base import Cost, Displacement, Matrix, is_mean_of_squares, pulled_share
from holdfast.forms.factors import Factor, damped, diagonal_of, divided, eigenbasis, times, trace_of
from holdfast.forms.layers import LayerForm, refuse_other_shapes
from holdfast.measures.base import Measure, SampleMeasure
from holdfast.persample.reductions import Block, Reduction, factors_of, joined, taken_apart
from holdfast.settings import choice
from holdfast.tensors.products import products_in

Sums = Literal["exact", "balanced", "nearest", "factors"]

STEPS = 1000
"""Of the power method on pairs of numbers, by which the nearest product is found."""


class KroneckerMatrix(Matrix):
    """G and A of one block.

    Args:
        block: the layer.
        g: G; a vector is its diagonal, ``None`` stands for 1.
        a: A, likewise.
        sums: how another is added.
    """

    def __init__(self, block: Block, g: Factor, a: Factor, sums: Sums = "balanced") -> None:
        self.block = block
        self.g = g
        self.a = a
        self.sums = sums

    @property
    def _device(self) -> torch.device:
        return next(iter(self.tensors().values())).device

    def apply(self, d: Displacement) -> dict[str, Tensor]:
        """Return G D A: in full precision, since rounded factors are not positive any more."""
        with products_in("float32", self._device):
            return taken_apart(self.block, times(self.g, joined(self.block, d), self.a))

    def apply_to_product(self, b: Tensor, a: Tensor) -> tuple[Tensor, Tensor]:
        """Return (GB)(ACAᵀ) and (BᵀGB)(AC), with C the inputs' factor: nothing is larger than B, A and the factors."""
        with products_in("float32", self._device):
            gb, ac = times(self.g, b, None), times(None, a, self.a)
            return gb @ (ac @ a.mT), (b.mT @ gb) @ ac

    def shrink(self, d: Displacement, strength: float) -> dict[str, Tensor]:
        """Return D/(1 + cλ) along each pair of eigenvectors."""
        return self._in_basis(d, lambda turned, values: turned / (1 + strength * values))

    def pulled(self, d: Displacement, strength: float) -> dict[str, Tensor]:
        """Return D·cλ/(1 + cλ) along each pair of eigenvectors."""
        return self._in_basis(d, lambda turned, values: turned * pulled_share(strength * values))

    def solve(self, b: Displacement, damping: float = 0.0) -> dict[str, Tensor]:
        """Return B/(λ + damping) along each pair of eigenvectors; nothing where λ is 0 up to rounding."""
        return self._in_basis(b, partial(divided, damping=damping))

    def _in_basis(self, d: Displacement, change: Callable[[Tensor, Tensor], Tensor]) -> dict[str, Tensor]:
        (u_g, l_g), (u_a, l_a) = self._bases
        matrix = joined(self.block, d)
        outputs, inputs = self.block.size
        values = diagonal_of(l_g, outputs, matrix).unsqueeze(1) * diagonal_of(l_a, inputs, matrix)
        with products_in("float32", matrix.device):
            turned = times(None if u_g is None else u_g.mT, matrix, u_a)
            found = times(u_g, change(turned, values), None if u_a is None else u_a.mT)
        return taken_apart(self.block, found)

    @cached_property
    def _bases(self) -> tuple[tuple[Factor, Factor], tuple[Factor, Factor]]:
        return eigenbasis(self.g), eigenbasis(self.a)

    def plus(self, earlier: Matrix, decay: float) -> "KroneckerMatrix":
        """Return one product for both, scaled to the sum of their traces."""
        assert isinstance(earlier, KroneckerMatrix)
        u, v = _weights(self, earlier, decay, self.sums)
        g, a = _combined(self.g, earlier.g, u), _combined(self.a, earlier.a, v)
        found = KroneckerMatrix(self.block, g, a, self.sums)
        wanted, has = self.trace() + decay * earlier.trace(), found.trace()
        scale = torch.where(has > 0, wanted / has, torch.ones_like(has))
        if a is not None:
            return KroneckerMatrix(self.block, g, a * scale, self.sums)
        return KroneckerMatrix(self.block, None if g is None else g * scale, a, self.sums)

    def scaled(self, factor: float) -> "KroneckerMatrix":
        """Return a multiple of one of the factors."""
        if self.g is not None:
            return KroneckerMatrix(self.block, factor * self.g, self.a, self.sums)
        return KroneckerMatrix(self.block, self.g, None if self.a is None else factor * self.a, self.sums)

    def diagonal(self) -> dict[str, Tensor]:
        """Return the products of both diagonals."""
        (outputs, inputs), like = self.block.size, next(iter(self.tensors().values()))
        return taken_apart(
            self.block, torch.outer(diagonal_of(self.g, outputs, like), diagonal_of(self.a, inputs, like))
        )

    def trace(self) -> Tensor:
        """Return the product of both traces."""
        (outputs, inputs), like = self.block.size, next(iter(self.tensors().values()))
        return diagonal_of(self.g, outputs, like).sum() * diagonal_of(self.a, inputs, like).sum()

    def largest_eigenvalue(self) -> Tensor:
        """Return the product of both largest ones."""
        (outputs, inputs), like = self.block.size, next(iter(self.tensors().values()))
        (_, l_g), (_, l_a) = self._bases
        return diagonal_of(l_g, outputs, like).max() * diagonal_of(l_a, inputs, like).max()

    def tensors(self) -> dict[str, Tensor]:
        """Return the factors that are not 1."""
        return {name: factor for name, factor in (("G", self.g), ("A", self.a)) if factor is not None}

    def mapped(self, change: Callable[[Tensor], Tensor]) -> "KroneckerMatrix":
        """Return the same with both changed."""
        g, a = (None if factor is None else change(factor) for factor in (self.g, self.a))
        return KroneckerMatrix(self.block, g, a, self.sums)


def _combined(one: Factor, other: Factor, weights: tuple[Tensor, Tensor]) -> Factor:
    return None if one is None or other is None else weights[0] * one + weights[1] * other


def _weights(
    one: KroneckerMatrix, other: KroneckerMatrix, decay: float, sums: Sums
) -> tuple[tuple[Tensor, Tensor], tuple[Tensor, Tensor]]:
    r"""Return with which weights factors are added: (u₁G₁ + u₂G₂) and (v₁A₁ + v₂A₂).

    ``"factors"`` adds them as they are. ``"balanced"`` gives each task's two the same trace first, by
    :math:`\pi^2 = \mathrm{tr}G_1\,\mathrm{tr}A_2 / (\mathrm{tr}G_2\,\mathrm{tr}A_1)`. ``"nearest"`` is the product that
    is nearest to the sum in the Frobenius norm: the largest singular pair of a matrix of rank two (Van Loan and
    Pitsianis 1993), for which the inner products of the factors will do.
    """
    unit = next(iter(one.tensors().values())).new_ones(())
    root = unit * decay**0.5
    if one.g is None or other.g is None or one.a is None or other.a is None:
        return (unit, decay * unit), (unit, decay * unit)  # one factor is 1, and the sum of the others is exact
    if sums == "factors":
        return (unit, root), (unit, root)
    if sums == "balanced":
        pi = (trace_of(one.g) * trace_of(other.a) / (trace_of(other.g) * trace_of(one.a))).sqrt()
        pi = torch.where(pi.isfinite() & (pi > 0), pi, unit)
        return (unit, pi * root), (unit, root / pi)
    # The sum is X Yᵀ with X = [G₁, γG₂] and Y = [A₁, A₂] as columns, so its singular vectors are X u and Y v.
    x = [[_inner(p, q) for q in (one.g, other.g)] for p in (one.g, other.g)]
    y = [[_inner(p, q) for q in (one.a, other.a)] for p in (one.a, other.a)]
    x = [[x[0][0], decay * x[0][1]], [decay * x[1][0], decay**2 * x[1][1]]]
    v = [1.0, 1.0]
    for _ in range(STEPS):
        u = _unit([y[0][0] * v[0] + y[0][1] * v[1], y[1][0] * v[0] + y[1][1] * v[1]])
        v = _unit([x[0][0] * u[0] + x[0][1] * u[1], x[1][0] * u[0] + x[1][1] * u[1]])
    return (u[0] * unit, decay * u[1] * unit), (v[0] * unit, v[1] * unit)


def _inner(one: Tensor, other: Tensor) -> float:
    return float((one.double() * other.double()).sum())


def _unit(pair: list[float]) -> list[float]:
    length = math.hypot(*pair)
    return [each / length for each in pair] if length > 0 else [1.0, 1.0]


@dataclasses.dataclass(frozen=True)
class Kronecker(LayerForm):
    """A product of two factors for each layer: a third of what rotated coordinates take, and less exact.

    Layers that are used at several positions have the factors of each of them (*expand*), as K-FAC has: there is no
    product for the gradient of a whole sample.

    Args:
        largest_side: of a layer's side with more outputs or inputs than this the diagonal is kept, since the factor
            would take the square of it: 8192 is 256 MiB in single precision.
        damping: a share of each factor's mean, by whose root every direction is held beside what was measured.
        outputs: how much is kept of G: ``"dense"``, ``"diagonal"``, or nothing, ``"identity"``.
        inputs: how much is kept of A.
        sums: what becomes of several tasks: all products are kept (``"exact"``, for as many times the memory and the
            time), or one is, by balanced sums of the factors (``"balanced"``), by those nearest to the exact sum
            (``"nearest"``), or by sums of the factors as they are (``"factors"``).
    """

    sums: Sums = "balanced"

    bears_rounding: ClassVar[bool] = False

    def __post_init__(self) -> None:
        super().__post_init__()
        choice("sums", self.sums, get_args(Sums))
        if self.outputs == self.inputs == "identity":
            choice("inputs", "identity with outputs='identity'", ("dense", "diagonal"))

    def takes(self, measure: Measure) -> bool:
        """Whether a measure is a mean of squares."""
        return is_mean_of_squares(measure)

    @property
    def keeps_every_task(self) -> bool:
        """Whether sums are exact."""
        return self.sums == "exact"

    def reduction(
        self,
        measure: SampleMeasure,
        blocks: Sequence[Block],
        parameters: Mapping[str, nn.Parameter],
        known: Mapping[str, Tensor],
    ) -> Reduction:
        """Add up both factors."""
        return self.factors(measure, blocks, parameters)

    def matrix(self, measure: SampleMeasure, block: Block, means: Mapping[str, Tensor]) -> KroneckerMatrix:
        """Return the factors of a layer."""
        g, a = (damped(factor, self.damping**0.5) for factor in factors_of(block, means))
        return KroneckerMatrix(block, g, a, self.sums)

    def cost(self, block: Block, parameters: Mapping[str, Tensor]) -> Cost:
        """Return what the factors take: Q is one product for each that is a matrix."""
        if not block.is_matrix:
            return super().cost(block, parameters)
        (outputs, inputs), sides = block.size, self.sides(block)
        kept = sum({"dense": n * n, "diagonal": n, "identity": 0}[s] for n, s in zip(block.size, sides, strict=True))
        dense = sum(n for n, side in zip(block.size, sides, strict=True) if side == "dense")
        said = "kronecker" if set(sides) == {"dense"} else f"kronecker, outputs {sides[0]}, inputs {sides[1]}"
        return Cost(kept, kept, outputs * inputs * max(1, dense), said)

    def restored_matrix(self, block: Block, tensors: Mapping[str, Tensor]) -> KroneckerMatrix:
        """Return the factors."""
        shapes = {
            key: (size, size) if side == "dense" else (size,)
            for key, side, size in zip("GA", self.sides(block), block.size, strict=True)
            if side != "identity"
        }
        refuse_other_shapes(block, tensors, shapes)
        return KroneckerMatrix(block, tensors.get("G"), tensors.get("A"), self.sums)
