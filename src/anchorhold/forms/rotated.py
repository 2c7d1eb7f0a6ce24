r"""A diagonal in the eigenbasis of a layer's factors, :math:`Q(D) = U_G\,(S \circ (U_G^T D\, U_A))\,U_A^T`.

:math:`U_G` and :math:`U_A` are the eigenvectors of the layer's two factors, of δ and of its inputs; S is the measure's
own mean, that of the diagonal, of gradients in these coordinates. Rotated EWC, Liu et al. 2018 (arXiv 1802.02950); as a
preconditioner EK-FAC, George et al. 2018 (arXiv 1806.03884).
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
from anchorhold.forms.base import Cost, Displacement, Matrix, pull_share
from anchorhold.forms.coordinates import (
    expand,
    from_basis,
    is_thin,
    multiplicities,
    outputs_from_basis,
    outputs_to_basis,
    squared_overlaps,
    to_basis,
    truncate_values,
)
from anchorhold.forms.factors import Factor, balance, eigenbasis, recompose, times, truncate
from anchorhold.forms.layers import LayerForm, refuse_other_shapes
from anchorhold.measures.base import SampleMeasure
from anchorhold.settings import choice
from anchorhold.tensors.matrices import Precision, products_in, rounded_dtype
from anchorhold.tensors.side_by_side import side_by_side


@dataclasses.dataclass(eq=False)
class RotatedMatrix(Matrix):
    """S of one block, in the eigenbasis of its factors.

    Args:
        block: the layer.
        s: S, of outputs × inputs, or of as many numbers as there are along their coordinates.
        basis: U_G and U_A, each whole, in blocks, or thin (``coordinates.py``); ``None`` for a side
            that stays as it is.
        spectra: the eigenvalues of the two factors that the basis is of; ``None`` for a factor that is the identity.
        is_basis_of_sum: True if those factors are of all tasks so far, and not of the one alone that S is of.
        precision: of the products.
    """

    s: Tensor
    basis: Basis
    spectra: Basis
    _: dataclasses.KW_ONLY
    is_basis_of_sum: bool = False
    precision: Precision = "float32"

    @property
    def description(self) -> str:
        kinds: list[Side] = [
            "identity" if u is None else "lowrank" if is_thin(u) else "blocks" if u.ndim == 3 else "dense"
            for u in self.basis
        ]
        return description_of(Sides(*kinds))

    @property
    def factors(self) -> tuple[Factor, Factor]:
        """G and A, whose eigenvectors the basis is."""
        g, a = (recompose(u, values) for u, values in zip(self.basis, self.spectra, strict=True))
        return g, a

    def apply(self, d: Displacement) -> dict[str, Tensor]:
        """Return U_G (S∘(U_Gᵀ D U_A)) U_Aᵀ."""
        return self.in_coordinates(d, torch.mul, rounded=True)

    def value(self, d: Displacement) -> Tensor:
        """Return the sum of S∘(U_Gᵀ D U_A)²."""
        matrix = joined(self.block, d)
        dtype = self.compute_dtype(matrix.dtype)
        u_g, u_a = self._basis_in(dtype)
        with products_in(self.precision, self.s.device):
            turned = to_basis(outputs_to_basis(matrix.to(dtype), u_g), u_a).to(matrix.dtype)
            return (self._expanded_s(matrix.dtype) * turned.square()).sum()

    def apply_to_product(self, b: Tensor, a: Tensor) -> tuple[Tensor, Tensor]:
        """Return Q(BA)Aᵀ and BᵀQ(BA) by the coordinates of B and A: only S∘(BA) is as large as the weight."""
        u_g, u_a = self._basis_in(b.dtype)
        with products_in(self.precision, self.s.device):
            b, a = outputs_to_basis(b, u_g), to_basis(a, u_a)
            q = self._expanded_s(b.dtype) * (b @ a)
            return outputs_from_basis(q @ a.mT, u_g), from_basis(b.mT @ q, u_a)

    def shrink(self, d: Displacement, strength: float) -> dict[str, Tensor]:
        """Return D/(1 + cS), in these coordinates."""
        return self.in_coordinates(d, lambda turned, s: turned / (1 + strength * s))

    def pull(self, d: Displacement, strength: float) -> dict[str, Tensor]:
        """Return D·cS/(1 + cS), in these coordinates."""
        return self.in_coordinates(d, lambda turned, s: turned * pull_share(strength * s))

    def solve(self, b: Displacement, damping: float = 0.0) -> dict[str, Tensor]:
        """Return B/(S + damping), in these coordinates."""
        return self.in_coordinates(b, lambda turned, s: torch.where(s + damping > 0, turned / (s + damping), 0.0))

    def in_coordinates(
        self, d: Displacement, change: Callable[[Tensor, Tensor], Tensor], *, rounded: bool = False
    ) -> dict[str, Tensor]:
        """Return U_G f(U_Gᵀ D U_A, S) U_Aᵀ.

        Args:
            d: D.
            change: f, of coordinates and their S.
            rounded: True to round D to the dtype of the products, as Q(D) does; a proximal step keeps D's digits.
        """
        matrix = joined(self.block, d)
        dtype = self.compute_dtype(matrix.dtype) if rounded else matrix.dtype
        u_g, u_a = self._basis_in(dtype)
        with products_in(self.precision, self.s.device):
            found = change(to_basis(outputs_to_basis(matrix.to(dtype), u_g), u_a), self._expanded_s(dtype))
            found = from_basis(outputs_from_basis(found, u_g), u_a)
        return taken_apart(self.block, found.to(matrix.dtype))

    def compute_dtype(self, dtype: torch.dtype) -> torch.dtype:
        """Return bfloat16 for products in bfloat16."""
        return rounded_dtype(self.precision, dtype)

    def _basis_in(self, dtype: torch.dtype) -> Basis:
        return Basis(*(None if u is None else u.to(dtype) for u in self.basis))

    def _expanded_s(self, dtype: torch.dtype) -> Tensor:
        """Return S with one number for each coordinate, also of the rests."""
        return expand(expand(self.s.to(dtype), self.basis.inputs).mT, self.basis.outputs).mT

    def add(self, earlier: Matrix, decay: float) -> "RotatedMatrix":
        """Return the sum as a diagonal in the eigenbasis of both tasks' factors.

        Each S goes there by its exact diagonal, so that the trace is that of the sum; what lies beside the diagonal is
        dropped.
        """
        assert isinstance(earlier, RotatedMatrix)
        earlier = earlier.to(self.s.device, self.s.dtype)
        basis, spectra = self.basis, self.spectra
        if not self.is_basis_of_sum:
            ranks = [u.shape[1] if u is not None and is_thin(u) else None for u in self.basis]
            both = balance(*self.factors), balance(*earlier.factors)
            basis, spectra = summed_basis(*both, decay, self.block.size, ranks)
        s = self.diagonal_in_basis(basis) + decay * earlier.diagonal_in_basis(basis)
        return RotatedMatrix(self.block, s, basis, spectra, precision=self.precision)

    def scale(self, factor: float) -> "RotatedMatrix":
        """Return a multiple of S, and of both factors by its root."""
        root = abs(factor) ** 0.5
        spectra = Basis(*(None if values is None else root * values for values in self.spectra))
        return RotatedMatrix(self.block, factor * self.s, self.basis, spectra, precision=self.precision)

    def truncate(self, ranks: Sequence[int | None]) -> "RotatedMatrix":
        """Return Q along the largest directions of each side for which a rank is given; S of the rest is its mean."""
        s, pairs = self.s, []
        for side, rank in enumerate(ranks):
            u, values = self.basis[side], self.spectra[side]
            if rank is not None and u is not None and rank < len(u):
                s = truncate_values(s, rank) if side else truncate_values(s.mT, rank).mT
                u, values = truncate(u, values, rank)
            pairs.append((u, values))
        basis, spectra = (Basis(*pair) for pair in zip(*pairs, strict=True))
        return dataclasses.replace(self, s=s.contiguous(), basis=basis, spectra=spectra)

    def diagonal_in_basis(self, basis: Basis) -> Tensor:
        """Return the diagonal of Q in another basis: (R_G∘R_G) S (R_A∘R_A)ᵀ with R = UᵀU_here."""
        if basis is self.basis:
            return self.s
        m_g, m_a = (squared_overlaps(to, of) for to, of in zip(basis, self.basis, strict=True))
        with products_in("float32", self.s.device):
            found = times(m_g, self.s, None)
            # S is kept, and so without a margin beside it.
            return (found if m_a is None else times(None, found, m_a.mT)).contiguous()

    def diagonal(self) -> dict[str, Tensor]:
        """Return (U_G∘U_G) S (U_A∘U_A)ᵀ."""
        return taken_apart(self.block, self.diagonal_in_basis(Basis(None, None)))

    def trace(self) -> Tensor:
        """Return the sum of S, each as often as there are directions of it."""
        if not any(map(is_thin, self.basis)):
            return self.s.sum()
        outputs, inputs = multiplicities(self.s.mT, self.basis.outputs), multiplicities(self.s, self.basis.inputs)
        return outputs @ self.s @ inputs

    def largest_eigenvalue(self) -> Tensor:
        return self.s.max() if self.s.numel() else self.s.new_zeros(())

    def state(self) -> dict[str, Tensor]:
        """Return S, the bases and the spectra."""
        named = {"S": self.s}
        named |= {f"U{key}": u for key, u in zip("GA", self.basis, strict=True) if u is not None}
        return named | {f"L{key}": values for key, values in zip("GA", self.spectra, strict=True) if values is not None}


def summed_basis(
    own: tuple[Factor, Factor],
    theirs: tuple[Factor, Factor] | None,
    decay: float,
    sizes: tuple[int, int],
    ranks: Sequence[int | None] = (None, None),
    inputs: Tensor | None = None,
) -> tuple[Basis, Basis]:
    """Return the eigenvectors and eigenvalues of one task's balanced factors plus √γ times the earlier tasks'.

    Args:
        own: G and A of the task.
        theirs: G and A of the earlier tasks, if there are any.
        decay: γ.
        sizes: of both factors.
        ranks: to which the eigenvectors of each side are truncated; ``None`` for all of them.
        inputs: the eigenvectors of the inputs, if they are known: the eigenvalues are the diagonal of A along them.
    """
    g, a = own
    if theirs is not None:
        root = decay**0.5
        g, a = (o if o is None or t is None else o + root * t for o, t in zip(own, theirs, strict=True))
    found = [eigenbasis(g, sizes[0])]
    if inputs is None:
        found.append(eigenbasis(a, sizes[1]))
    else:
        assert a is not None  # since it has eigenvectors
        found.append((inputs, (inputs * (a @ inputs)).sum(-2).flatten()[: sizes[1]].clamp(min=0)))
    (u_g, l_g), (u_a, l_a) = (
        pair if rank is None else truncate(*pair, rank) for pair, rank in zip(found, ranks, strict=True)
    )
    return Basis(u_g, u_a), Basis(l_g, l_a)


def description_of(sides: Sides) -> str:
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
    def has_eigenbasis(self) -> bool:
        return True

    @property
    def passes(self) -> int:
        """Two: one for the coordinates, one for S in them."""
        return 2

    @property
    def has_matrix_per_task(self) -> bool:
        """True with ``sums="exact"``."""
        return self.sums == "exact"

    def reduction(
        self,
        measure: SampleMeasure,
        blocks: Sequence[Block],
        parameters: Mapping[str, nn.Parameter],
        known: Mapping[str, Tensor],
    ) -> Reduction:
        """Return the sums of the factors in the first pass, and of φ in their eigenbasis in the second."""
        if not known:
            return self.factors(measure, blocks, parameters)
        bases = {block.name: _pair(known, f"{block.name}/U") for block in blocks}
        return RotatedReduction(measure.phi, blocks, parameters, bases, self.sharing, self.measuring_precision)

    def coupled_blocks(self, blocks: Sequence[Block], earlier: Mapping[str, Matrix]) -> list[list[Block]]:
        """Return in one group the layers whose input eigenvectors are one tensor since earlier tasks.

        In a first task each finds the same ones by itself, from batches that come in the same order.
        """
        groups: dict[object, list[Block]] = {}
        for block in blocks:
            before = earlier.get(block.name)
            inputs = before.basis.inputs if self.share_inputs and isinstance(before, RotatedMatrix) else None
            groups.setdefault(block if inputs is None else id(inputs), []).append(block)
        return list(groups.values())

    def prepare_next_pass(
        self, blocks: Sequence[Block], means: Mapping[str, Tensor], earlier: Mapping[str, Matrix], decay: float
    ) -> dict[str, Tensor]:
        """Return, after the first pass, the eigenbases of the factors of all tasks so far in place of the factors."""
        found = dict(means)
        own = [block for block in blocks if f"{block.name}/G" in means or f"{block.name}/A" in means]
        if not own:
            return found
        leaders = self._leaders(own, means)
        bases: dict[str, tuple[Basis, Basis]] = {}
        # Those that see the same inputs as another layer wait for its eigenvectors.
        for some in (
            [block for block in own if leaders[block.name] == block.name],
            [block for block in own if leaders[block.name] != block.name],
        ):
            tasks = []
            for block in some:
                leader = bases.get(leaders[block.name])
                along = None if leader is None else leader[0].inputs
                tasks.append(partial(self._bases, block, means, earlier.get(block.name), decay, along))
            device = means[f"{own[0].name}/mass"].device
            bases |= zip((block.name for block in some), side_by_side(tasks, device), strict=True)
        for block in own:
            for kind, pair in zip("UL", bases[block.name], strict=True):
                found |= {f"{block.name}/{kind}{k}": t for k, t in zip("GA", pair, strict=True) if t is not None}
            for key in "GA":
                found.pop(f"{block.name}/{key}", None)
        return found

    def _leaders(self, blocks: Sequence[Block], means: Mapping[str, Tensor]) -> dict[str, str]:
        """Return for each block the first one whose factor of the inputs is equal to its own, to the last bit."""
        leaders = {block.name: block.name for block in blocks}
        seen: list[tuple[str, Tensor]] = []
        for block in blocks:
            inputs = means.get(f"{block.name}/A") if self.share_inputs else None
            if inputs is None or inputs.ndim == 1:  # a diagonal has no eigenvectors to share
                continue
            equal = (
                name
                for name, a in seen
                if a.shape == inputs.shape and a.device == inputs.device and torch.equal(a, inputs)
            )
            leaders[block.name] = next(equal, block.name)
            if leaders[block.name] == block.name:
                seen.append((block.name, inputs))
        return leaders

    def _bases(
        self, block: Block, means: Mapping[str, Tensor], before: Matrix | None, decay: float, along: Tensor | None
    ) -> tuple[Basis, Basis]:
        """Return the eigenvectors and eigenvalues of a block's factors, with earlier tasks' and along known inputs'."""
        factors, theirs = factors_of(block, means), None
        own = balance(*factors)
        if isinstance(before, RotatedMatrix) and before.block == block:
            like = next(factor for factor in own if factor is not None)
            theirs = balance(*before.to(like.device, like.dtype).factors)
        if self.share_inputs and factors[1] is not None and along is None and theirs is None:
            # Before it is balanced with G: so layers with equal inputs get equal bits, in any turn.
            along = eigenbasis(factors[1], block.size[1])[0]
        return summed_basis(own, theirs, decay, block.size, inputs=along)

    def matrix(self, measure: SampleMeasure, block: Block, means: Mapping[str, Tensor]) -> RotatedMatrix:
        s = measure.transform(means[f"{block.name}/S"])
        found = RotatedMatrix(
            block,
            s + self.damping * s.mean(),
            _pair(means, f"{block.name}/U"),
            _pair(means, f"{block.name}/L"),
            is_basis_of_sum=not self.has_matrix_per_task,
            precision=self.precision,
        )
        ranks = [self.rank if side == "lowrank" else None for side in self.sides(block)]
        return found if ranks == [None, None] else found.truncate(ranks)

    def cost(self, block: Block, parameters: Mapping[str, Tensor]) -> Cost:
        """Return the cost of S and the bases: Q is four products, two for each side that is rotated."""
        if not block.is_matrix:
            return super().cost(block, parameters)
        sides, weights = self.sides(block), math.prod(block.size)
        pairs = list(zip(sides, block.size, strict=True))
        turned = [(side, size) for side, size in pairs if side not in ("identity", "diagonal")]
        bases = [math.prod(self.basis_shape(side, size)) for side, size in turned]
        factors = [math.prod(sums_shape(side, size, self.largest_block)) for side, size in turned]
        lengths = [self.values_length(side, size) for side, size in pairs]
        spectra = sum(length for (side, _), length in zip(pairs, lengths, strict=True) if side != "identity")
        columns = sum(self._columns(side, size) for side, size in turned)
        measuring = weights + sum(factors) + sum(block.size)
        kept = math.prod(lengths) + sum(bases) + spectra
        return Cost(kept, measuring, weights + 2 * columns * weights, description_of(sides))

    def cost_of_product(self, block: Block, parameters: Mapping[str, Tensor], rank: int) -> int:
        """Return the multiplications by the coordinates of B and A: three products of the weight's size, and S."""
        if not block.is_matrix:
            return super().cost_of_product(block, parameters, rank)
        pairs = zip(self.sides(block), block.size, strict=True)
        turned = sum(size * self._columns(s, size) for s, size in pairs if s not in ("identity", "diagonal"))
        return 2 * rank * turned + (3 * rank + 1) * math.prod(block.size)

    def _columns(self, side: Side, size: int) -> int:
        """Return the multiplications by a basis for each number: its columns, twice for a thin one and its rest."""
        return self.basis_shape(side, size)[-1] * (2 if side == "lowrank" else 1)

    def restore_matrix(self, block: Block, tensors: Mapping[str, Tensor]) -> RotatedMatrix:
        sides = list(zip("GA", self.sides(block), block.size, strict=True))
        shapes: dict[str, tuple[int, ...]] = {"S": tuple(self.values_length(side, size) for _, side, size in sides)}
        for key, side, size in sides:
            if side not in ("identity", "diagonal"):
                shapes[f"U{key}"] = self.basis_shape(side, size)
            if side != "identity":
                shapes[f"L{key}"] = (self.values_length(side, size),)
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
    """Return the tensors of both sides whose names begin alike; ``None`` for a side without one."""
    return Basis(tensors.get(f"{kind}G"), tensors.get(f"{kind}A"))
