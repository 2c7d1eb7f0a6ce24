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
from collections.abc import Mapping, Sequence
from functools import cached_property, partial
from typing import Literal, get_args

import torch
from torch import Tensor, nn

from anchorhold.engine.reductions import (
    COUNTS,
    Basis,
    Block,
    Reduction,
    Side,
    factors_of,
    joined,
    sums_shape,
    taken_apart,
)
from anchorhold.forms.base import Cost, Displacement, Matrix, is_mean_of_squares, pull_share
from anchorhold.forms.factors import (
    Factor,
    KeptFactor,
    Spectrum,
    as_factor,
    damp,
    diagonal_of,
    divide,
    eigenbasis,
    largest_of,
    times,
    trace_of,
    truncate,
)
from anchorhold.forms.layers import LayerForm, refuse_other_shapes
from anchorhold.forms.rotated import RotatedMatrix
from anchorhold.measures.base import Measure, SampleMeasure
from anchorhold.settings import added, choice, require
from anchorhold.tensors.matrices import Precision, products_in, rounded_dtype

Sums = Literal["exact", "balanced", "nearest", "factors"]

STEPS = 1000
"""Steps of the power method on pairs of numbers that finds the nearest product."""


@dataclasses.dataclass(eq=False)
class KroneckerMatrix(Matrix):
    """G and A of one block.

    Args:
        block: the layer.
        g: G, also in blocks or as its spectrum; a vector is its diagonal, ``None`` stands for the identity.
        a: A, likewise.
        sums: how another is added.
        precision: of the products; below float32 only if both factors that are matrices are kept as spectra.
    """

    g: KeptFactor
    a: KeptFactor
    sums: Sums = "balanced"
    precision: Precision = "float32"

    @property
    def _like(self) -> Tensor:
        """Any tensor of the factors, for its device and dtype."""
        return next(iter(self.state().values()))

    def apply(self, d: Displacement) -> dict[str, Tensor]:
        """Return G D A."""
        # In full precision unless spectra are kept: rounded factors are not positive semi-definite any more.
        matrix = joined(self.block, d)
        own = matrix.to(self.compute_dtype(matrix.dtype))
        with products_in(self.precision, self._like.device):
            return taken_apart(self.block, times(self.g, own, self.a).to(matrix.dtype))

    def compute_dtype(self, dtype: torch.dtype) -> torch.dtype:
        """Return bfloat16 for products in bfloat16."""
        return rounded_dtype(self.precision, dtype)

    def apply_to_product(self, b: Tensor, a: Tensor) -> tuple[Tensor, Tensor]:
        """Return (GB)(ACAᵀ) and (BᵀGB)(AC), with C the inputs' factor: nothing is larger than B, A and the factors."""
        with products_in("float32", self._like.device):
            gb, ac = times(self.g, b, None), times(None, a, self.a)
            return gb @ (ac @ a.mT), (b.mT @ gb) @ ac

    def shrink(self, d: Displacement, strength: float) -> dict[str, Tensor]:
        """Return D/(1 + cλ) along each pair of eigenvectors."""
        return self.to_rotated().in_coordinates(d, lambda turned, values: turned / (1 + strength * values))

    def pull(self, d: Displacement, strength: float) -> dict[str, Tensor]:
        """Return D·cλ/(1 + cλ) along each pair of eigenvectors."""
        return self.to_rotated().in_coordinates(d, lambda turned, values: turned * pull_share(strength * values))

    def solve(self, b: Displacement, damping: float = 0.0) -> dict[str, Tensor]:
        """Return B/(λ + damping) along each pair of eigenvectors, 0 where that is 0 up to rounding."""
        return self.to_rotated().in_coordinates(b, partial(divide, damping=damping))

    def to_rotated(self) -> RotatedMatrix:
        """Return the same along pairs of eigenvectors, where an eigenvalue is the product of both factors'."""
        # These products are as many as the layer has weights, so they are made each time; the decompositions are kept.
        (u_g, l_g), (u_a, l_a) = self._spectra
        like = next(value for value in (l_g, l_a) if value is not None)
        ones = (
            like.new_ones(size) if own is None else own for own, size in zip((l_g, l_a), self.block.size, strict=True)
        )
        return RotatedMatrix(self.block, torch.outer(*ones), Basis(u_g, u_a), Basis(l_g, l_a))

    @cached_property
    def _spectra(self) -> tuple[tuple[Factor, Factor], ...]:
        """The eigenvectors and eigenvalues of both factors."""
        return tuple(eigenbasis(f, n) for f, n in zip((self.g, self.a), self.block.size, strict=True))

    def add(self, earlier: Matrix, decay: float) -> "KroneckerMatrix":
        """Return one product for both, scaled to the trace of the sum."""
        assert isinstance(earlier, KroneckerMatrix)
        earlier = earlier.to(self._like.device, self._like.dtype)
        one, other = (as_factor(self.g), as_factor(self.a)), (as_factor(earlier.g), as_factor(earlier.a))
        u, v = _weights(one, other, decay, self.sums)
        g, a = _combined(one[0], other[0], u), _combined(one[1], other[1], v)
        combined = dataclasses.replace(self, g=g, a=a)
        wanted, has = self.trace() + decay * earlier.trace(), combined.trace()
        scale = torch.where(has > 0, wanted / has, torch.ones_like(has))
        if a is not None:
            a = a * scale
        elif g is not None:
            g = g * scale
        sizes = self.block.size
        return dataclasses.replace(self, g=_kept_like(self.g, g, sizes[0]), a=_kept_like(self.a, a, sizes[1]))

    def scale(self, factor: float) -> "KroneckerMatrix":
        """Return a multiple of one of the factors."""
        if self.g is not None:
            return dataclasses.replace(self, g=_multiple(self.g, factor))
        return self if self.a is None else dataclasses.replace(self, a=_multiple(self.a, factor))

    def diagonal(self) -> dict[str, Tensor]:
        """Return the products of both diagonals."""
        (outputs, inputs), like = self.block.size, self._like
        products = torch.outer(diagonal_of(self.g, outputs, like), diagonal_of(self.a, inputs, like))
        return taken_apart(self.block, products)

    def trace(self) -> Tensor:
        """Return the product of both traces."""
        g, a = (
            trace_of(factor) if isinstance(factor, Spectrum) else diagonal_of(factor, size, self._like).sum()
            for factor, size in zip((self.g, self.a), self.block.size, strict=True)
        )
        return g * a

    def largest_eigenvalue(self) -> Tensor:
        """Return the product of both largest ones."""
        return largest_of(self.g, self._like) * largest_of(self.a, self._like)

    def state(self) -> dict[str, Tensor]:
        """Return the factors that are not the identity, or their spectra."""
        found: dict[str, Tensor] = {}
        for key, factor in (("G", self.g), ("A", self.a)):
            if isinstance(factor, Spectrum):
                found |= {f"U{key}": factor.vectors, f"L{key}": factor.values}
            elif factor is not None:
                found[key] = factor
        return found


def _multiple(factor: Tensor | Spectrum, by: float) -> Tensor | Spectrum:
    return Spectrum(factor.vectors, by * factor.values) if isinstance(factor, Spectrum) else by * factor


def _kept_like(kept: KeptFactor, factor: Factor, size: int) -> KeptFactor:
    """Return a factor as another is kept: as its spectrum, with as many directions."""
    if not isinstance(kept, Spectrum):
        return factor
    columns = kept.vectors.shape[-1]
    return spectrum_of(factor, size, columns if kept.vectors.ndim == 2 and columns < size else None)


def spectrum_of(factor: Factor, size: int, rank: int | None) -> KeptFactor:
    """Return the spectrum of a factor, truncated to a rank if one is given; a diagonal stays as it is."""
    vectors, values = eigenbasis(factor, size)
    if vectors is None or values is None:
        return factor
    vectors, values = (vectors, values) if rank is None else truncate(vectors, values, rank)
    assert vectors is not None and values is not None
    return Spectrum(vectors, values)


def _combined(one: Factor, other: Factor, weights: tuple[Tensor, Tensor]) -> Factor:
    """Return u₁F₁ + u₂F₂."""
    return None if one is None or other is None else weights[0] * one + weights[1] * other


def _weights(
    one: tuple[Factor, Factor], other: tuple[Factor, Factor], decay: float, sums: Sums
) -> tuple[tuple[Tensor, Tensor], tuple[Tensor, Tensor]]:
    r"""Return the weights u and v of the factors' sums u₁G₁ + u₂G₂ and v₁A₁ + v₂A₂.

    ``"factors"`` adds them as they are. ``"balanced"`` gives each task's two the same trace first, by
    :math:`\pi^2 = \mathrm{tr}G_1\,\mathrm{tr}A_2 / (\mathrm{tr}G_2\,\mathrm{tr}A_1)`. ``"nearest"`` is the product that
    is nearest to the sum in the Frobenius norm: the largest singular pair of a matrix of rank two (Van Loan and
    Pitsianis 1993), for which the inner products of the factors will do.
    """
    (g, a), (other_g, other_a) = one, other
    unit = next(factor for factor in one if factor is not None).new_ones(())
    root = unit * decay**0.5
    if g is None or other_g is None or a is None or other_a is None:
        return (unit, decay * unit), (unit, decay * unit)  # one factor is the identity: the others' sum is exact
    if sums == "factors":
        return (unit, root), (unit, root)
    if sums == "balanced":
        pi = (trace_of(g) * trace_of(other_a) / (trace_of(other_g) * trace_of(a))).sqrt()
        pi = torch.where(pi.isfinite() & (pi > 0), pi, unit)
        return (unit, pi * root), (unit, root / pi)
    # The sum is X Yᵀ with X = [G₁, γG₂] and Y = [A₁, A₂] as columns, so its singular vectors are X u and Y v.
    x = [[_inner(p, q) for q in (g, other_g)] for p in (g, other_g)]
    y = [[_inner(p, q) for q in (a, other_a)] for p in (a, other_a)]
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
        damping: a thousandth, whose root is the share of its mean eigenvalue that each factor is given, so that what no
            sample has touched is held a little too: the factored damping of K-FAC, Martens and Grosse 2015 (arXiv
            1503.05671), with λ that share of the product's mean. One factor beside an identity has the root too. 0 for
            Q as it was measured, as RegMean has it.
        outputs: how much is kept of G: ``"dense"``, ``"blocks"`` of ``largest_block`` along its diagonal, the ``rank``
            largest directions, all others having their mean (``"lowrank"``), ``"diagonal"``, or nothing,
            ``"identity"``.
        inputs: how much is kept of A.
        sums: what becomes of several tasks: all products are kept (``"exact"``, for as many times the memory and the
            time), or one is, by balanced sums of the factors (``"balanced"``), by those nearest to the exact sum
            (``"nearest"``), or by sums of the factors as they are (``"factors"``).
        largest_block: how large a block is at most; they are of one size, as nearly as can be.
        rank: how many directions are kept of a side of low rank.
        bits: in how many Q is kept, 32 or 16 (bfloat16), whatever the guard's ``state_dtype`` says of the anchor. In 16
            factors are kept as eigenvectors and eigenvalues: rounded themselves they would not be positive any more.
        share_inputs: whether layers that see the same inputs, as queries, keys and values do, have their factor in
            common, which after one task it is; sums of several tasks weigh it by each layer's other one.
        precision: of the products in the hold, ``"float32"``, or with 16 bits also ``"tf32"`` and ``"bfloat16"``.
    """

    sums: Sums = "balanced"
    _: dataclasses.KW_ONLY
    precision: Precision = added("float32")  # noqa: RUF009 (a field, as its docstring says)

    def __post_init__(self) -> None:
        super().__post_init__()
        choice("sums", self.sums, get_args(Sums))
        choice("precision", self.precision, get_args(Precision))
        given = f"precision={self.precision!r} with bits={self.bits}"
        expected = "bits=16 with it, since a product of rounded factors is not positive, and one of their spectra is"
        require(self.precision == "float32" or self.bits == 16, given, expected)
        if self.outputs == self.inputs == "identity":
            choice("inputs", "identity with outputs='identity'", ("dense", "diagonal"))

    @property
    def supports_bfloat16(self) -> bool:
        """True if factors are kept as their spectra."""
        return self.bits == 16

    @property
    def has_eigenbasis(self) -> bool:
        """True if no factor is kept as a matrix."""
        return all(side in ("diagonal", "identity") or self._is_spectrum(side) for side in (self.outputs, self.inputs))

    @property
    def has_matrix_per_task(self) -> bool:
        """True with ``sums="exact"``."""
        return self.sums == "exact"

    def supports(self, measure: Measure) -> bool:
        """Return whether a measure is a mean of squares."""
        return is_mean_of_squares(measure)

    def reduction(
        self,
        measure: SampleMeasure,
        blocks: Sequence[Block],
        parameters: Mapping[str, nn.Parameter],
        known: Mapping[str, Tensor],
    ) -> Reduction:
        return self.factors(measure, blocks, parameters)

    def matrix(self, measure: SampleMeasure, block: Block, means: Mapping[str, Tensor]) -> KroneckerMatrix:
        share = self.damping**0.5
        kept: list[KeptFactor] = []
        for factor, side, size in zip(factors_of(block, means), self.sides(block), block.size, strict=True):
            damped = damp(factor, share, size)
            rank = self.rank if side == "lowrank" else None
            kept.append(spectrum_of(damped, size, rank) if self._is_spectrum(side) else damped)
        g, a = kept
        return KroneckerMatrix(block, g, a, self.sums, self.precision)

    def _is_spectrum(self, side: Side) -> bool:
        return side == "lowrank" or (self.bits == 16 and side in ("dense", "blocks"))

    def cost(self, block: Block, parameters: Mapping[str, Tensor]) -> Cost:
        """Return the cost of the factors: Q is one product for each that is a matrix, and two for each spectrum."""
        if not block.is_matrix:
            return super().cost(block, parameters)
        pairs = list(zip(self.sides(block), block.size, strict=True))
        measuring = [math.prod(sums_shape(side, n, self.largest_block)) for side, n in pairs if side != "identity"]
        kept = [math.prod(shape) for shape in self._shapes(block).values()]
        columns = sum(self._columns(side, size) for side, size in pairs)
        sides = {side for side, _ in pairs}
        description = "kronecker" if sides == {"dense"} else f"kronecker, outputs {pairs[0][0]}, inputs {pairs[1][0]}"
        return Cost(sum(kept), sum(measuring) + COUNTS, math.prod(block.size) * max(1, columns), description)

    def cost_of_product(self, block: Block, parameters: Mapping[str, Tensor], rank: int) -> int:
        """Return the multiplications of (GB)(ACAᵀ) and (BᵀGB)(AC)."""
        if not block.is_matrix:
            return super().cost_of_product(block, parameters, rank)
        pairs = zip(self.sides(block), block.size, strict=True)
        factors = sum(size * self._columns(side, size) for side, size in pairs)
        return rank * factors + 2 * rank**2 * sum(block.size)

    def _columns(self, side: Side, size: int) -> int:
        """Return the multiplications by a side's factor for each number; 0 unless the factor is a matrix."""
        if side in ("diagonal", "identity"):
            return 0
        return self.basis_shape(side, size)[-1] * (2 if self._is_spectrum(side) else 1)

    def _shapes(self, block: Block) -> dict[str, tuple[int, ...]]:
        """Return the names and shapes of the state of a layer's Q."""
        found: dict[str, tuple[int, ...]] = {}
        for key, side, size in zip("GA", self.sides(block), block.size, strict=True):
            if self._is_spectrum(side):
                found |= {f"U{key}": self.basis_shape(side, size), f"L{key}": (self.values_length(side, size),)}
            elif side != "identity":
                found[key] = sums_shape(side, size, self.largest_block)
        return found

    def restore_matrix(self, block: Block, tensors: Mapping[str, Tensor]) -> KroneckerMatrix:
        refuse_other_shapes(block, tensors, self._shapes(block))
        g, a = (
            Spectrum(tensors[f"U{key}"], tensors[f"L{key}"]) if f"U{key}" in tensors else tensors.get(key)
            for key in "GA"
        )
        return KroneckerMatrix(block, g, a, self.sums, self.precision)


@dataclasses.dataclass(frozen=True)
class Kronecker16(Kronecker):
    """The Kronecker form in 16 bits: eigenvectors and eigenvalues of both factors in bfloat16, and the anchor as it is.

    It takes 2(m·min(m, b) + n·min(n, b)) bytes for a layer of m × n weights, sides of more than b = ``largest_block``
    being kept in blocks: that is without the 2mn of S in the rotated form.
    """

    outputs: Side = "blocks"
    inputs: Side = "blocks"
    _: dataclasses.KW_ONLY
    largest_block: int = 8192
    bits: int = 16
    share_inputs: bool = True
    precision: Precision = "bfloat16"
