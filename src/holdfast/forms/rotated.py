r"""A diagonal in the layer's own coordinates, :math:`Q(D) = U_G\,(S \circ (U_G^T D\, U_A))\,U_A^T`.

The coordinates are the eigenvectors of the layer's two factors, of δ and of its inputs; S is the measure's own mean,
that of the diagonal, of gradients in these coordinates. Rotated EWC, Liu et al. 2018 (arXiv 1802.02950); as a
preconditioner EKFAC, George et al. 2018 (arXiv 1806.03884).
"""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import ClassVar, Literal, get_args

import torch
from torch import Tensor, nn

from holdfast.forms.base import Cost, Displacement, Matrix, pulled_share
from holdfast.forms.factors import Factor, balanced, composed, eigenbasis, times
from holdfast.forms.layers import LayerForm, refuse_other_shapes
from holdfast.measures.base import SampleMeasure
from holdfast.persample.reductions import (
    Basis,
    Block,
    Reduction,
    RotatedReduction,
    Sharing,
    Side,
    factors_of,
    joined,
    taken_apart,
)
from holdfast.settings import choice
from holdfast.tensors.products import Precision, products_in


class RotatedMatrix(Matrix):
    """S of one block, in the coordinates of a basis.

    Args:
        block: the layer.
        s: S, of outputs × inputs.
        basis: U_G and U_A; ``None`` for a side that stays as it is.
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
        return self.said_of([u is not None for u in self.basis])

    @staticmethod
    def said_of(turned: Sequence[bool]) -> str:
        """Return in words that these sides are rotated, of outputs and inputs."""
        if all(turned):
            return "rotated"
        return f"rotated along its {'outputs' if turned[0] else 'inputs'}" if any(turned) else "diagonal"

    @property
    def factors(self) -> tuple[Factor, Factor]:
        """G and A, whose eigenvectors the basis is."""
        g, a = (composed(u, values) for u, values in zip(self.basis, self.spectra, strict=True))
        return g, a

    def apply(self, d: Displacement) -> dict[str, Tensor]:
        """Return U_G (S∘(U_Gᵀ D U_A)) U_Aᵀ."""
        return self._in_coordinates(d, lambda turned: self.s * turned)

    def value(self, d: Displacement) -> Tensor:
        """Return the sum of S∘(U_Gᵀ D U_A)²."""
        with products_in(self.precision, self.s.device):
            return (self.s * self._turned(d).square()).sum()

    def apply_to_product(self, b: Tensor, a: Tensor) -> tuple[Tensor, Tensor]:
        """Return both by the coordinates of B and A, so that only S∘(BA) is as large as the weight."""
        u_g, u_a = self.basis
        with products_in(self.precision, self.s.device):
            b, a = times(None if u_g is None else u_g.mT, b, None), times(None, a, u_a)
            q = self.s * (b @ a)
            return times(u_g, q @ a.mT, None), times(None, b.mT @ q, None if u_a is None else u_a.mT)

    def shrink(self, d: Displacement, strength: float) -> dict[str, Tensor]:
        """Return D/(1 + cS), in these coordinates."""
        return self._in_coordinates(d, lambda turned: turned / (1 + strength * self.s))

    def pulled(self, d: Displacement, strength: float) -> dict[str, Tensor]:
        """Return D·cS/(1 + cS), in these coordinates."""
        return self._in_coordinates(d, lambda turned: turned * pulled_share(strength * self.s))

    def solve(self, b: Displacement, damping: float = 0.0) -> dict[str, Tensor]:
        """Return B/(S + damping), in these coordinates."""
        damped = self.s + damping
        return self._in_coordinates(b, lambda turned: torch.where(damped > 0, turned / damped, 0.0))

    def _in_coordinates(self, d: Displacement, change: Callable[[Tensor], Tensor]) -> dict[str, Tensor]:
        with products_in(self.precision, self.s.device):
            found = change(self._turned(d))
            found = found if self.basis.outputs is None else self.basis.outputs @ found
            found = found if self.basis.inputs is None else found @ self.basis.inputs.mT
        return taken_apart(self.block, found)

    def _turned(self, d: Displacement) -> Tensor:
        """Return U_Gᵀ D U_A."""
        found = joined(self.block, d)
        found = found if self.basis.outputs is None else self.basis.outputs.mT @ found
        return found if self.basis.inputs is None else found @ self.basis.inputs

    def plus(self, earlier: Matrix, decay: float) -> "RotatedMatrix":
        """Return the sum as a diagonal in the eigenbasis of both tasks' factors.

        Each S goes there by its exact diagonal, so that the trace is that of the sum; what lies beside the diagonal is
        dropped.
        """
        assert isinstance(earlier, RotatedMatrix)
        earlier = earlier.mapped(partial(_like, other=self.s))
        basis, spectra = self.basis, self.spectra
        if not self.basis_of_sum:
            basis, spectra = summed_basis(balanced(*self.factors), balanced(*earlier.factors), decay)
        s = self.diagonal_in(basis) + decay * earlier.diagonal_in(basis)
        return RotatedMatrix(self.block, s, basis, spectra, precision=self.precision)

    def diagonal_in(self, basis: Basis) -> Tensor:
        """Return the diagonal of this Q in other coordinates: (R_G∘R_G) S (R_A∘R_A)ᵀ with R = UᵀU_here."""
        if basis is self.basis:
            return self.s
        r_g, r_a = (_turning(to, of) for to, of in zip(basis, self.basis, strict=True))
        with products_in("float32", self.s.device):
            found = self.s if r_g is None else r_g.square() @ self.s
            return found if r_a is None else found @ r_a.square().mT

    def scaled(self, factor: float) -> "RotatedMatrix":
        """Return a multiple of S."""
        root = abs(factor) ** 0.5
        spectra = Basis(*(None if values is None else root * values for values in self.spectra))
        return RotatedMatrix(self.block, factor * self.s, self.basis, spectra, precision=self.precision)

    def diagonal(self) -> dict[str, Tensor]:
        """Return (U_G∘U_G) S (U_A∘U_A)ᵀ."""
        return taken_apart(self.block, self.diagonal_in(Basis(None, None)))

    def trace(self) -> Tensor:
        """Return the sum of S."""
        return self.s.sum()

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


def summed_basis(own: tuple[Factor, Factor], theirs: tuple[Factor, Factor] | None, decay: float) -> tuple[Basis, Basis]:
    """Return the eigenvectors and eigenvalues of one task's balanced factors, and others' with them."""
    if theirs is not None:
        root = decay**0.5
        own = tuple(a if a is None or b is None else a + root * b for a, b in zip(own, theirs, strict=True))  # type: ignore[assignment]
    (u_g, l_g), (u_a, l_a) = map(eigenbasis, own)
    return Basis(u_g, u_a), Basis(l_g, l_a)


def _like(tensor: Tensor, other: Tensor) -> Tensor:
    """Return a tensor where another is, and as precise: what rests may be elsewhere, and in fewer bits."""
    return tensor.to(other)


def _turning(to: Tensor | None, of: Tensor | None) -> Tensor | None:
    """Return R = UᵀU_here, by which coordinates change on one side."""
    if to is None or of is None:
        return of if to is None else to.mT
    return to.mT @ of


@dataclasses.dataclass(frozen=True)
class Rotated(LayerForm):
    """A diagonal in the coordinates of each layer's two factors.

    It takes two passes over the samples: the first finds the coordinates, the second what lies along them. All measures
    from data have it; MAS and AF take absolute values in these coordinates, which are those of their own δ.

    Args:
        largest_side: a layer's side with more outputs or inputs than this stays as it is, since its coordinates would
            take the square of it: 8192 is 256 MiB in single precision.
        damping: a share of the mean importance, which every direction is given beside what was measured.
        outputs: whether a layer's outputs are rotated (``"dense"``), or stay as they are (``"identity"``).
        inputs: the same of its inputs.
        sharing: of layers that are used at several positions, as convolutions are and all layers along a sequence:
            ``"exact"`` squares a sample's gradient, which is the sum over positions, ``"expand"`` each position's,
            which is faster, and an approximation.
        sums: what becomes of several tasks: one diagonal in the coordinates of all (``"rotated"``), or each task's own,
            kept as it is (``"exact"``), which takes as many times the memory and the time.
        precision: of the products in the hold, ``"float32"`` or ``"tf32"``.
    """

    sharing: Sharing = "exact"
    sums: Literal["rotated", "exact"] = "rotated"
    precision: Precision = "float32"

    side_choices: ClassVar[tuple[Side, ...]] = ("dense", "identity")

    def __post_init__(self) -> None:
        super().__post_init__()
        choice("sharing", self.sharing, get_args(Sharing))
        choice("sums", self.sums, ("rotated", "exact"))
        choice("precision", self.precision, get_args(Precision))

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
        return RotatedReduction(measure.phi, blocks, parameters, bases, self.sharing)

    def learned(
        self, blocks: Sequence[Block], means: Mapping[str, Tensor], earlier: Mapping[str, Matrix], decay: float
    ) -> dict[str, Tensor]:
        """Return, after the first pass, the eigenbases of the factors of all tasks so far."""
        found = dict(means)
        for block in blocks:
            if f"{block.name}/G" not in means and f"{block.name}/A" not in means:
                continue
            own, before, theirs = balanced(*factors_of(block, means)), earlier.get(block.name), None
            if isinstance(before, RotatedMatrix) and before.block == block:
                like = next(factor for factor in own if factor is not None)
                theirs = balanced(*before.mapped(partial(_like, other=like)).factors)
            basis, spectra = summed_basis(own, theirs, decay)
            for kind, pair in (("U", basis), ("L", spectra)):
                found |= {f"{block.name}/{kind}{k}": t for k, t in zip("GA", pair, strict=True) if t is not None}
            for key in "GA":
                found.pop(f"{block.name}/{key}", None)
        return found

    def matrix(self, measure: SampleMeasure, block: Block, means: Mapping[str, Tensor]) -> RotatedMatrix:
        """Return S of a layer in its basis."""
        s = measure.transform(means[f"{block.name}/S"])
        return RotatedMatrix(
            block,
            s + self.damping * s.mean(),
            _pair(means, f"{block.name}/U"),
            _pair(means, f"{block.name}/L"),
            basis_of_sum=not self.keeps_every_task,
            precision=self.precision,
        )

    def cost(self, block: Block, parameters: Mapping[str, Tensor]) -> Cost:
        """Return what S and the bases take: Q is four products, two for each side that is rotated."""
        if not block.is_matrix:
            return super().cost(block, parameters)
        outputs, inputs = block.size
        squares = [n * n if side == "dense" else 0 for n, side in zip(block.size, self.sides(block), strict=True)]
        kept = outputs * inputs + sum(squares) + outputs + inputs
        applying = outputs * inputs + 2 * sum(
            n for n, square in zip((outputs, inputs), squares, strict=True) if square
        ) * (outputs * inputs)
        said = RotatedMatrix.said_of([bool(square) for square in squares])
        return Cost(kept, max(sum(squares), kept), applying, said)

    def restored_matrix(self, block: Block, tensors: Mapping[str, Tensor]) -> RotatedMatrix:
        """Return S in its basis."""
        shapes: dict[str, tuple[int, ...]] = {"S": block.size}
        for key, side, size in zip("GA", self.sides(block), block.size, strict=True):
            if side == "dense":
                shapes[f"U{key}"] = size, size
            if side != "identity":
                shapes[f"L{key}"] = (size,)
        refuse_other_shapes(block, tensors, shapes)
        return RotatedMatrix(block, tensors["S"], _pair(tensors, "U"), _pair(tensors, "L"), precision=self.precision)


def _pair(tensors: Mapping[str, Tensor], kind: str) -> Basis:
    """Return what is known of both sides, by the beginning of its name."""
    return Basis(tensors.get(f"{kind}G"), tensors.get(f"{kind}A"))
