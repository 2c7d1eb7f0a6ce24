r"""A diagonal in the layer's own coordinates, :math:`Q(D) = U_G\,(S \circ (U_G^T D\, U_A))\,U_A^T`.

The coordinates are the eigenvectors of the layer's two factors, of δ and of its inputs; S is the measure's own mean,
that of the diagonal, of gradients in these coordinates. Rotated EWC, Liu et al. 2018 (arXiv 1802.02950); as a
preconditioner EKFAC, George et al. 2018 (arXiv 1806.03884).
"""

import dataclasses
import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import ClassVar, Literal, get_args

import torch
from torch import Tensor, nn

from anchorhold.engine.reductions import (
    Basis,
    Block,
    Reduction,
    RotatedReduction,
    Sharing,
    Side,
    Sides,
    factors_of,
    joined,
    sums_shape,
    taken_apart,
)
from anchorhold.forms.base import Cost, Displacement, Matrix, pulled_share
from anchorhold.forms.factors import Factor, balanced, composed, eigenbasis, thin, times
from anchorhold.forms.of_layers.coordinates import (
    along,
    along_outputs,
    back,
    back_outputs,
    cut,
    directions,
    is_thin,
    shares,
    spread,
)
from anchorhold.forms.of_layers.layers import LayerForm, refuse_other_shapes
from anchorhold.measures.base import SampleMeasure
from anchorhold.settings import choice
from anchorhold.tensors.matrices.products import Precision, in_precision, products_in


class RotatedMatrix(Matrix):
    """S of one block, in the coordinates of a basis.

    Args:
        block: the layer.
        s: S, of outputs × inputs, or of as many numbers as there are along their coordinates.
        basis: U_G and U_A, whole, in blocks, or thin, of which the rest is one coordinate more; ``None`` for a side
            that stays as it is.
        spectra: the eigenvalues of the two factors that the basis is of; ``None`` for one that is 1.
        basis_of_sum: whether those factors are of all tasks so far, and not of the one alone that S is of.
        precision: of the products.
    """

    def __init__(
        self,
        block: Block,
        s: Tensor,
        basis: Basis,
        spectra: Basis,
        *,
        basis_of_sum: bool = False,
        precision: Precision = "float32",
    ) -> None:
        self.block = block
        self.s = s
        self.basis = basis
        self.spectra = spectra
        self.basis_of_sum = basis_of_sum
        self.precision = precision

    @property
    def said(self) -> str:
        """Which sides are rotated."""
        return said_of(Sides(*(_side_of(u) for u in self.basis)))

    @property
    def factors(self) -> tuple[Factor, Factor]:
        """G and A, whose eigenvectors the basis is."""
        g, a = (composed(u, values) for u, values in zip(self.basis, self.spectra, strict=True))
        return g, a

    def apply(self, d: Displacement) -> dict[str, Tensor]:
        """Return U_G (S∘(U_Gᵀ D U_A)) U_Aᵀ."""
        return self._in_coordinates(d, torch.mul, rounded=True)

    def value(self, d: Displacement) -> Tensor:
        """Return the sum of S∘(U_Gᵀ D U_A)²."""
        matrix = joined(self.block, d)
        dtype = self.products_dtype(matrix.dtype)
        with products_in(self.precision, self.s.device):
            turned = self._turned(matrix.to(dtype), dtype).to(matrix.dtype)
            return (self._spread(matrix.dtype) * turned.square()).sum()

    def apply_to_product(self, b: Tensor, a: Tensor) -> tuple[Tensor, Tensor]:
        """Return both by the coordinates of B and A, so that only S∘(BA) is as large as the weight."""
        u_g, u_a = self._basis_in(b.dtype)
        with products_in(self.precision, self.s.device):
            b, a = along_outputs(b, u_g), along(a, u_a)
            q = self._spread(b.dtype) * (b @ a)
            return back_outputs(q @ a.mT, u_g), back(b.mT @ q, u_a)

    def shrink(self, d: Displacement, strength: float) -> dict[str, Tensor]:
        """Return D/(1 + cS), in these coordinates."""
        return self._in_coordinates(d, lambda turned, s: turned / (1 + strength * s))

    def pulled(self, d: Displacement, strength: float) -> dict[str, Tensor]:
        """Return D·cS/(1 + cS), in these coordinates."""
        return self._in_coordinates(d, lambda turned, s: turned * pulled_share(strength * s))

    def solve(self, b: Displacement, damping: float = 0.0) -> dict[str, Tensor]:
        """Return B/(S + damping), in these coordinates."""
        return self._in_coordinates(b, lambda turned, s: torch.where(s + damping > 0, turned / (s + damping), 0.0))

    def changed(self, d: Displacement, change: Callable[[Tensor, Tensor], Tensor]) -> dict[str, Tensor]:
        """Return what a function of coordinates and their S makes of D."""
        return self._in_coordinates(d, change)

    def _in_coordinates(
        self, d: Displacement, change: Callable[[Tensor, Tensor], Tensor], *, rounded: bool = False
    ) -> dict[str, Tensor]:
        matrix = joined(self.block, d)
        dtype = self.products_dtype(matrix.dtype) if rounded else matrix.dtype
        u_g, u_a = self._basis_in(dtype)
        with products_in(self.precision, self.s.device):
            found = change(self._turned(matrix.to(dtype), dtype), self._spread(dtype))
            found = back(back_outputs(found, u_g), u_a)
        return taken_apart(self.block, found.to(matrix.dtype))

    def _turned(self, matrix: Tensor, dtype: torch.dtype) -> Tensor:
        """Return U_Gᵀ D U_A."""
        u_g, u_a = self._basis_in(dtype)
        return along(along_outputs(matrix, u_g), u_a)

    def products_dtype(self, dtype: torch.dtype) -> torch.dtype:
        """Return 16 bits where products are to be made in these."""
        return in_precision(self.precision, dtype)

    def _basis_in(self, dtype: torch.dtype) -> Basis:
        return Basis(*(None if u is None else u.to(dtype) for u in self.basis))

    def _spread(self, dtype: torch.dtype) -> Tensor:
        """Return S with one number for each coordinate."""
        return spread(spread(self.s.to(dtype), self.basis.inputs).mT, self.basis.outputs).mT

    def plus(self, earlier: Matrix, decay: float) -> "RotatedMatrix":
        """Return the sum as a diagonal in the eigenbasis of both tasks' factors.

        Each S goes there by its exact diagonal, so that the trace is that of the sum; what lies beside the diagonal is
        dropped.
        """
        assert isinstance(earlier, RotatedMatrix)
        earlier = earlier.mapped(partial(_like, other=self.s))
        basis, spectra = self.basis, self.spectra
        if not self.basis_of_sum:
            both = balanced(*self.factors), balanced(*earlier.factors)
            basis, spectra = summed_basis(*both, decay, self.block.size, [_rank_of(u) for u in self.basis])
        s = self.diagonal_in(basis) + decay * earlier.diagonal_in(basis)
        return RotatedMatrix(self.block, s, basis, spectra, precision=self.precision)

    def thinned(self, ranks: Sequence[int | None]) -> "RotatedMatrix":
        """Return it along fewer directions of each side for which a rank is given: S of the rest is its mean."""
        s, pairs = self.s, []
        for side, rank in enumerate(ranks):
            u, values = self.basis[side], self.spectra[side]
            if rank is not None and u is not None and rank < len(u):
                s = cut(s, rank) if side else cut(s.mT, rank).mT
                u, values = thin(u, values, rank)
            pairs.append((u, values))
        basis, spectra = (Basis(*pair) for pair in zip(*pairs, strict=True))
        return RotatedMatrix(
            self.block, s.contiguous(), basis, spectra, basis_of_sum=self.basis_of_sum, precision=self.precision
        )

    def diagonal_in(self, basis: Basis) -> Tensor:
        """Return the diagonal of this Q in other coordinates: (R_G∘R_G) S (R_A∘R_A)ᵀ with R = UᵀU_here."""
        if basis is self.basis:
            return self.s
        m_g, m_a = (shares(to, of) for to, of in zip(basis, self.basis, strict=True))
        with products_in("float32", self.s.device):
            found = times(m_g, self.s, None)
            return found if m_a is None else times(None, found, m_a.mT)

    def scaled(self, factor: float) -> "RotatedMatrix":
        """Return a multiple of S."""
        root = abs(factor) ** 0.5
        spectra = Basis(*(None if values is None else root * values for values in self.spectra))
        return RotatedMatrix(self.block, factor * self.s, self.basis, spectra, precision=self.precision)

    def diagonal(self) -> dict[str, Tensor]:
        """Return (U_G∘U_G) S (U_A∘U_A)ᵀ."""
        return taken_apart(self.block, self.diagonal_in(Basis(None, None)))

    def trace(self) -> Tensor:
        """Return the sum of S, as often as there are directions."""
        if not any(map(is_thin, self.basis)):
            return self.s.sum()
        outputs, inputs = directions(self.s.mT, self.basis.outputs), directions(self.s, self.basis.inputs)
        return outputs @ self.s @ inputs

    def largest_eigenvalue(self) -> Tensor:
        """Return the largest S."""
        return self.s.max() if self.s.numel() else self.s.new_zeros(())

    def tensors(self) -> dict[str, Tensor]:
        """Return S, the bases and the spectra."""
        named = {"S": self.s}
        named |= {f"U{key}": u for key, u in zip("GA", self.basis, strict=True) if u is not None}
        return named | {f"L{key}": values for key, values in zip("GA", self.spectra, strict=True) if values is not None}

    def mapped(self, change: Callable[[Tensor], Tensor]) -> "RotatedMatrix":
        """Return the same with all of its tensors changed."""
        basis, spectra = (
            Basis(*(None if each is None else change(each) for each in pair)) for pair in (self.basis, self.spectra)
        )
        return RotatedMatrix(
            self.block,
            change(self.s),
            basis,
            spectra,
            basis_of_sum=self.basis_of_sum,
            precision=self.precision,
        )


def summed_basis(
    own: tuple[Factor, Factor],
    theirs: tuple[Factor, Factor] | None,
    decay: float,
    sizes: tuple[int, int],
    ranks: Sequence[int | None] = (None, None),
    inputs: Tensor | None = None,
) -> tuple[Basis, Basis]:
    """Return the eigenvectors and eigenvalues of one task's balanced factors, and others' with them.

    Of inputs whose eigenvectors are given, only what lies along these.
    """
    if theirs is not None:
        root = decay**0.5
        own = tuple(a if a is None or b is None else a + root * b for a, b in zip(own, theirs, strict=True))  # type: ignore[assignment]
    found = [
        eigenbasis(own[0], sizes[0]),
        eigenbasis(own[1], sizes[1]) if inputs is None else _along(own[1], inputs, sizes),
    ]
    (u_g, l_g), (u_a, l_a) = (
        pair if rank is None else thin(*pair, rank) for pair, rank in zip(found, ranks, strict=True)
    )
    return Basis(u_g, u_a), Basis(l_g, l_a)


def _along(factor: Factor, u: Tensor, sizes: tuple[int, int]) -> tuple[Tensor, Tensor]:
    """Return some coordinates, and the diagonal that a factor of the inputs has there."""
    assert factor is not None
    return u, (u * (factor @ u)).sum(-2).flatten()[: sizes[1]].clamp(min=0)


def _is_same(one: Tensor, other: Tensor | None) -> bool:
    """Whether two layers have seen the same inputs."""
    return other is not None and one.shape == other.shape and one.device == other.device and torch.equal(one, other)


def _like(tensor: Tensor, other: Tensor) -> Tensor:
    """Return a tensor where another is, and as precise: what rests may be elsewhere, and in fewer bits."""
    return tensor.to(other)


def _rank_of(u: Factor) -> int | None:
    """Return how many directions a thin basis has."""
    return u.shape[1] if u is not None and is_thin(u) else None


def _side_of(u: Factor) -> Side:
    if u is None:
        return "identity"
    return "lowrank" if is_thin(u) else "blocks" if u.ndim == 3 else "dense"


def said_of(sides: Sides) -> str:
    """Return in words how a layer's outputs and inputs are rotated."""
    turned = [side not in ("identity", "diagonal") for side in sides]
    if not any(turned):
        return "diagonal"
    how = {"blocks": " in blocks", "lowrank": " at low rank"}
    kinds = list(dict.fromkeys(how.get(side, "") for side, is_turned in zip(sides, turned, strict=True) if is_turned))
    along = "" if all(turned) else f" along its {'outputs' if turned[0] else 'inputs'}"
    if len(kinds) == 1:
        return f"rotated{kinds[0]}{along}"
    return f"rotated, outputs{how.get(sides.outputs, ' whole')}, inputs{how.get(sides.inputs, ' whole')}"


@dataclasses.dataclass(frozen=True)
class Rotated(LayerForm):
    """A diagonal in the coordinates of each layer's two factors.

    It takes two passes over the samples: the first finds the coordinates, the second what lies along them. All measures
    from data have it; MAS and AF take absolute values in these coordinates, which are those of their own δ.

    Args:
        largest_side: a layer's side with more outputs or inputs than this stays as it is, since its coordinates would
            take the square of it: 8192 is 256 MiB in single precision.
        damping: a share of a layer's mean importance, which each of its directions is given beside what was measured,
            so that what no sample has touched is held a little too: a thousandth, 0 for Q as it was measured.
        outputs: whether a layer's outputs are rotated (``"dense"``), in blocks of ``largest_block`` side by side
            (``"blocks"``), along the ``rank`` largest directions, all others having their mean (``"lowrank"``), or stay
            as they are (``"identity"``).
        inputs: the same of its inputs.
        sharing: of layers that are used at several positions, as convolutions are and all layers along a sequence:
            ``"exact"`` squares a sample's gradient, which is the sum over positions, ``"expand"`` each position's,
            which is faster, and an approximation.
        sums: what becomes of several tasks: one diagonal in the coordinates of all (``"rotated"``), or each task's own,
            kept as it is (``"exact"``), which takes as many times the memory and the time.
        precision: of the products in the hold, ``"float32"``, ``"tf32"`` or ``"bfloat16"``.
        largest_block: how large a block is at most; they are of one size, as nearly as can be.
        rank: how many directions are kept of a side of low rank.
        bits: in how many Q is kept, 32 or 16 (bfloat16), whatever the guard's ``state_dtype`` says of the anchor.
        share_inputs: whether layers that see the same inputs, as queries, keys and values do, have the inputs'
            coordinates in common: those that are the first one's, which after one task are everyone's.
    """

    sharing: Sharing = "exact"
    sums: Literal["rotated", "exact"] = "rotated"
    precision: Precision = "float32"

    side_choices: ClassVar[tuple[Side, ...]] = ("dense", "blocks", "lowrank", "identity")

    def __post_init__(self) -> None:
        super().__post_init__()
        choice("sharing", self.sharing, get_args(Sharing))
        choice("sums", self.sums, ("rotated", "exact"))
        choice("precision", self.precision, get_args(Precision))

    @property
    def keeps_coordinates(self) -> bool:
        """Always."""
        return True

    @property
    def passes(self) -> int:
        """One for the coordinates, one for what lies along them."""
        return 2

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
        """Add up the factors in the first pass, and φ in their eigenbasis in the second."""
        if not known:
            return self.factors(measure, blocks, parameters)
        bases = {block.name: _pair(known, f"{block.name}/U") for block in blocks}
        return RotatedReduction(measure.phi, blocks, parameters, bases, self.sharing, self.measured_in)

    def measured_together(self, blocks: Sequence[Block], earlier: Mapping[str, Matrix]) -> list[list[Block]]:
        """Return layers that have the inputs' coordinates in common since earlier tasks, which the first one turns.

        In a first task each finds the same by itself, from batches that come in the same order.
        """
        groups: dict[object, list[Block]] = {}
        for block in blocks:
            before = earlier.get(block.name)
            inputs = before.basis.inputs if self.share_inputs and isinstance(before, RotatedMatrix) else None
            groups.setdefault(block if inputs is None else id(inputs), []).append(block)
        return list(groups.values())

    def learned(
        self, blocks: Sequence[Block], means: Mapping[str, Tensor], earlier: Mapping[str, Matrix], decay: float
    ) -> dict[str, Tensor]:
        """Return, after the first pass, the eigenbases of the factors of all tasks so far."""
        found = dict(means)
        seen: list[tuple[Tensor, Tensor]] = []
        for block in blocks:
            if f"{block.name}/G" not in means and f"{block.name}/A" not in means:
                continue
            factors = factors_of(block, means)
            own, before, theirs = balanced(*factors), earlier.get(block.name), None
            if isinstance(before, RotatedMatrix) and before.block == block:
                like = next(factor for factor in own if factor is not None)
                theirs = balanced(*before.mapped(partial(_like, other=like)).factors)
            inputs = means.get(f"{block.name}/A") if self.share_inputs else None
            shared = next((u for a, u in seen if _is_same(a, inputs)), None)
            along = shared
            if inputs is not None and shared is None and theirs is None:
                # Not as they are balanced with outputs: so equal inputs have the same to the last bit in any turn.
                along = eigenbasis(factors[1], block.size[1])[0]
            basis, spectra = summed_basis(own, theirs, decay, block.size, inputs=along)
            if inputs is not None and basis.inputs is not None and shared is None:
                seen.append((inputs, basis.inputs))
            for kind, pair in (("U", basis), ("L", spectra)):
                found |= {f"{block.name}/{kind}{k}": t for k, t in zip("GA", pair, strict=True) if t is not None}
            for key in "GA":
                found.pop(f"{block.name}/{key}", None)
        return found

    def matrix(self, measure: SampleMeasure, block: Block, means: Mapping[str, Tensor]) -> RotatedMatrix:
        """Return S of a layer in its basis."""
        s = measure.transform(means[f"{block.name}/S"])
        found = RotatedMatrix(
            block,
            s + self.damping * s.mean(),
            _pair(means, f"{block.name}/U"),
            _pair(means, f"{block.name}/L"),
            basis_of_sum=not self.keeps_every_task,
            precision=self.precision,
        )
        ranks = [self.rank if side == "lowrank" else None for side in self.sides(block)]
        return found if ranks == [None, None] else found.thinned(ranks)

    def cost(self, block: Block, parameters: Mapping[str, Tensor]) -> Cost:
        """Return what S and the bases take: Q is four products, two for each side that is rotated."""
        if not block.is_matrix:
            return super().cost(block, parameters)
        sides, weights = self.sides(block), math.prod(block.size)
        pairs = list(zip(sides, block.size, strict=True))
        turned = [(side, size) for side, size in pairs if side not in ("identity", "diagonal")]
        bases = [math.prod(self.basis_shape(side, size)) for side, size in turned]
        factors = [math.prod(sums_shape(side, size, self.largest_block)) for side, size in turned]
        lengths = [self.along(side, size) for side, size in pairs]
        spectra = sum(length for (side, _), length in zip(pairs, lengths, strict=True) if side != "identity")
        columns = sum(self._columns(side, size) for side, size in turned)
        measuring = weights + sum(factors) + sum(block.size)
        kept = math.prod(lengths) + sum(bases) + spectra
        return Cost(kept, measuring, weights + 2 * columns * weights, said_of(sides))

    def cost_of_product(self, block: Block, parameters: Mapping[str, Tensor], rank: int) -> int:
        """Return the multiplications by the coordinates of B and A: three products of the weight's size, and S."""
        if not block.is_matrix:
            return super().cost_of_product(block, parameters, rank)
        pairs = zip(self.sides(block), block.size, strict=True)
        turned = sum(size * self._columns(s, size) for s, size in pairs if s not in ("identity", "diagonal"))
        return 2 * rank * turned + (3 * rank + 1) * math.prod(block.size)

    def _columns(self, side: Side, size: int) -> int:
        """Return what a product with a basis takes for each number: its columns, of a thin one and its rest twice."""
        return self.basis_shape(side, size)[-1] * (2 if side == "lowrank" else 1)

    def restored_matrix(self, block: Block, tensors: Mapping[str, Tensor]) -> RotatedMatrix:
        """Return S in its basis."""
        sides = list(zip("GA", self.sides(block), block.size, strict=True))
        shapes: dict[str, tuple[int, ...]] = {"S": tuple(self.along(side, size) for _, side, size in sides)}
        for key, side, size in sides:
            if side not in ("identity", "diagonal"):
                shapes[f"U{key}"] = self.basis_shape(side, size)
            if side != "identity":
                shapes[f"L{key}"] = (self.along(side, size),)
        refuse_other_shapes(block, tensors, shapes)
        return RotatedMatrix(block, tensors["S"], _pair(tensors, "U"), _pair(tensors, "L"), precision=self.precision)


@dataclasses.dataclass(frozen=True)
class Rotated16(Rotated):
    """The rotated form in half the bytes: S and bases in bfloat16, by which products are made, and the anchor as it is.

    Sides of more than ``largest_block`` = b are rotated in blocks, each by its own eigenvectors. So a layer of m × n
    weights takes 2(mn + m·min(m, b) + n·min(n, b)) bytes beside its anchor, and its hold at most 4b multiplications a
    weight and step, however wide it is.
    """

    outputs: Side = "blocks"
    inputs: Side = "blocks"
    precision: Precision = "bfloat16"
    _: dataclasses.KW_ONLY
    largest_block: int = 8192
    bits: int = 16
    share_inputs: bool = True


def _pair(tensors: Mapping[str, Tensor], kind: str) -> Basis:
    """Return what is known of both sides, by the beginning of its name."""
    return Basis(tensors.get(f"{kind}G"), tensors.get(f"{kind}A"))
