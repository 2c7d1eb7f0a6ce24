r"""Holds of layers' matrices, of all runs at once: Q(θ − θ*) where Q is no diagonal.

Each product is written as X Yᵀ of two matrices that lie row by row, so that both are read along the side that is summed
over: a GPU's units for TF32 know no other way. A basis is therefore kept together with its transpose, and a product
from the right is taken as :math:`(Y D^T)^T`. The products depend on the weights alone, so a GPU can work on them while
the gradients are computed; those of a hold after the step wait for it.
"""

from collections.abc import Mapping, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from anchorhold.engine.reductions import joined, taken_apart
from anchorhold.forms import Block, Form, Kronecker, KroneckerMatrix, Matrix, Rotated, RotatedMatrix
from anchorhold.forms.base import pull_share
from anchorhold.tensors.matrices import Precision, products_in
from anchorhold_lab.training.fast.flat_layout import FlatLayout
from anchorhold_lab.training.fast.recording import compiled
from anchorhold_lab.training.fast.step_gradients import Gradients

MULTIPLE = 32
"""To which a GPU's matrices are padded with zeros: rows then begin on its cache lines of 128 bytes, and products, which
are made in tiles of so many, leave no remainder."""

Parts = dict[str, Tensor]
"""What Q of a block is made of, by name."""


def can_hold(form: Form) -> bool:
    """Whether the fast engine can do with a form: one number a weight, or layers' matrices that it has products for.

    An exact sum has more products after each task, and what another class makes of these forms is not known here, nor
    are sides in blocks or of low rank, or 16 bits.
    """
    if isinstance(form, Rotated | Kronecker) and type(form) in (Rotated, Kronecker):
        whole = {form.outputs, form.inputs} <= {"dense", "diagonal", "identity"}
        return form.sums != "exact" and whole and form.bits == 32 and form.precision != "bfloat16"
    return form.elementwise


class LayerHolds:
    """Q of the layers' matrices of R runs, and what it makes of their weights.

    Args:
        form: the form that all runs have.
        blocks: the form's blocks; those that are no matrices are left to others.
        layout: where the weights lie.
        weights: θ, ``[R, width]``.
        anchor: θ*, likewise.
        multiple: to which matrices are padded.
        implicit: whether they act after a step, which needs the coordinates in which Q is one number each.
    """

    def __init__(
        self,
        form: Form,
        blocks: Sequence[Block],
        layout: FlatLayout,
        weights: Tensor,
        anchor: Tensor,
        multiple: int,
        *,
        implicit: bool = False,
    ) -> None:
        # Of a layer that is frozen nothing has a place.
        self.blocks = [b for b in blocks if b.is_matrix and any(name in layout.places for name in b.parameters)]
        self.implicit = implicit
        self._apply = rotated if isinstance(form, Rotated) or implicit else kronecker
        self._precision: Precision = form.precision if isinstance(form, Rotated) else "float32"
        self._layout = layout
        self._weights, self._anchor = weights, anchor
        self._multiple = multiple
        self._q: dict[str, Parts] = {}
        self._holding = [False] * len(weights)
        self._compiled = compiled(self._pulled_ if implicit else self._applied, weights.device)
        sizes = {block: [self._padded(size) for size in block.size] for block in self.blocks}
        zeros = {block: weights.new_zeros(len(weights), *size) for block, size in sizes.items()}
        self._nothing = self._by_parameter(zeros)

    @property
    def holding(self) -> bool:
        """Whether any run is held: none is before its first task has been consolidated."""
        return any(self._holding)

    def take(self, run: int, matrices: Mapping[str, Matrix]) -> None:
        """Take over what one run is held by, nothing where there are no matrices."""
        self._holding[run] = False
        for block in self.blocks:
            parts = self._parts(matrices[block.name]) if block.name in matrices else {}
            buffers = self._q.setdefault(block.name, {}) if parts else self._q.get(block.name, {})
            for key, part in parts.items():
                if key not in buffers:
                    sizes = [self._padded(size) for size in part.shape]
                    buffers[key] = self._weights.new_zeros(len(self._weights), *sizes)
            for key, buffer in buffers.items():
                own = buffer[run].zero_()
                if key in parts:
                    own[tuple(map(slice, parts[key].shape))].copy_(parts[key])
            self._holding[run] |= bool(parts)

    def pulls(self) -> Gradients:
        """Return Q(θ − θ*) of every parameter of a layer, ``[R, *shape]``; half the hold's gradient at strength 1."""
        if not self.holding:
            return self._nothing
        with products_in(self._precision, self._weights.device):
            found: Gradients = self._compiled(self._weights, self._anchor, self._q)
        return found

    def pull_(self, factor: Tensor) -> None:
        """Pull weights back after a step, as :mod:`~anchorhold.holds.of_weights.quadratic` does; ``factor`` is 2ch."""
        if self.holding:
            with products_in(self._precision, self._weights.device):
                self._compiled(self._weights, self._anchor, self._q, factor)

    def _pulled_(self, weights: Tensor, anchor: Tensor, q: Mapping[str, Parts], factor: Tensor) -> None:
        # What is beyond all numbers must not meet an S of 0.
        factor = factor.clamp(max=torch.finfo(factor.dtype).max).unsqueeze(-1)
        shares = {name: {**parts, "S": pull_share(factor * parts["S"])} for name, parts in q.items()}
        weights.sub_(self._layout.joined(self._applied(weights, anchor, shares)))

    def _applied(self, weights: Tensor, anchor: Tensor, q: Mapping[str, Parts]) -> Gradients:
        theta, theta_star = self._layout.views(weights), self._layout.views(anchor)
        found = {}
        for block in self.blocks:
            outputs, inputs = block.size
            shapes = dict(zip(block.parameters, (block.shape, (outputs,)), strict=False))
            d = {
                name: theta[name] - theta_star[name] if name in theta else weights.new_zeros(len(weights), *shape)
                for name, shape in shapes.items()  # what is frozen stays where it is
            }
            margins = (0, self._padded(inputs) - inputs, 0, self._padded(outputs) - outputs)
            found[block] = self._apply(F.pad(joined(block, d, lead=1), margins), q[block.name])
        return self._by_parameter(found)

    def _by_parameter(self, matrices: Mapping[Block, Tensor]) -> Gradients:
        """Return matrices, with their margins, as the parameters' parts of them."""
        return {
            name: part
            for block, matrix in matrices.items()
            for name, part in taken_apart(block, matrix[:, : block.size[0], : block.size[1]]).items()
            if name in self._layout.places
        }

    def _padded(self, size: int) -> int:
        return -(-size // self._multiple) * self._multiple

    def _parts(self, matrix: Matrix) -> Parts:
        """Return what the products read of a matrix."""
        if isinstance(matrix, KroneckerMatrix):
            if not self.implicit:
                return matrix.state()
            matrix = matrix.to_rotated()
        assert isinstance(matrix, RotatedMatrix)
        bases = {f"U{key}": u for key, u in zip("GA", matrix.basis, strict=True) if u is not None}
        return {"S": matrix.s, **bases, **{f"{key}t": u.mT for key, u in bases.items()}}


def rotated(d: Tensor, q: Parts) -> Tensor:
    """Return U_G (S∘(U_Gᵀ D U_A)) U_Aᵀ of every run; a side that has no basis stays as it is."""
    turned = _from_left(q.get("UGt"), _from_right(d, q.get("UAt")))
    return _from_left(q.get("UG"), _from_right(q["S"] * turned, q.get("UA")))


def kronecker(d: Tensor, q: Parts) -> Tensor:
    """Return G D A of every run; a side that has no factor stays as it is."""
    return _from_left(q.get("G"), _from_right(d, q.get("A")))


def _from_left(x: Tensor | None, d: Tensor) -> Tensor:
    """Return X D, of a diagonal where X is one row a run."""
    if x is None:
        return d
    return x @ d if x.ndim == d.ndim else x.unsqueeze(-1) * d


def _from_right(d: Tensor, y: Tensor | None) -> Tensor:
    """Return D Yᵀ, column by column in memory, as the next product from the left reads it."""
    if y is None:
        return d
    return (y @ d.mT).mT if y.ndim == d.ndim else d * y.unsqueeze(-2)
