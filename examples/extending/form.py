"""A form of one's own: one number for each unit, in place of one for each weight.

A layer of m × n weights takes m numbers. All weights into a unit are held alike, as UCL holds them by the unit's
uncertainty (Ahn, Cha, Lee and Moon 2019, arXiv 1905.11614). Registered, it works by name:

    anchorhold-lab run permuted-digits --measure EWC --strength 10 --form units --with examples/extending/form.py
"""

import dataclasses
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, nn

import anchorhold
from anchorhold.engine.reductions import DiagonalReduction, Reduction
from anchorhold.forms import Block, Matrix
from anchorhold.forms.base import Displacement
from anchorhold.measures.base import SampleMeasure


@dataclasses.dataclass(eq=False)
class UnitMatrix(Matrix):
    """Q(D) = s∘D, with one number s for each unit, the first dimension of a parameter of some shape."""

    s: Tensor
    shape: torch.Size

    def apply(self, d: Displacement) -> dict[str, Tensor]:
        """Return s∘D."""
        return self._times(self.s, d)

    def shrink(self, d: Displacement, strength: float) -> dict[str, Tensor]:
        """Return D/(1 + cs)."""
        return self._times(1 / (1 + strength * self.s), d)

    def solve(self, b: Displacement, damping: float = 0.0) -> dict[str, Tensor]:
        """Return B/(s + damping)."""
        damped = self.s + damping
        return self._times(torch.where(damped > 0, 1 / damped, 0.0), b)

    def add(self, earlier: Matrix, decay: float) -> "UnitMatrix":
        """Return s + γs′, which is exact."""
        assert isinstance(earlier, UnitMatrix)
        return dataclasses.replace(self, s=self.s + decay * earlier.s)

    def scale(self, factor: float) -> "UnitMatrix":
        """Return a multiple of s."""
        return dataclasses.replace(self, s=factor * self.s)

    def diagonal(self) -> dict[str, Tensor]:
        """Return s for every weight of its unit."""
        return self._times(self.s, {self.block.name: torch.ones(self.shape).to(self.s)})

    def trace(self) -> Tensor:
        """Return the sum of s, as often as a unit has weights."""
        return self.s.sum() * (self.shape.numel() / len(self.s))

    def largest_eigenvalue(self) -> Tensor:
        """Return the largest s."""
        return self.s.max()

    def state(self) -> dict[str, Tensor]:
        """Return s."""
        return {"s": self.s}

    def _times(self, values: Tensor, d: Displacement) -> dict[str, Tensor]:
        """Return a number for each unit times D."""
        return {name: values.view(-1, *[1] * (each.ndim - 1)) * each for name, each in d.items()}


@anchorhold.register_form("units")
@dataclasses.dataclass(frozen=True)
class Units(anchorhold.forms.Form):
    """The mean importance of the weights into each unit; all measures from data have it."""

    @property
    def has_eigenbasis(self) -> bool:
        """True, since Q is a diagonal: it may pull after a step."""
        return True

    def blocks(self, model: nn.Module, parameters: Mapping[str, Tensor]) -> list[Block]:
        """Return each parameter by itself."""
        return [Block(name, (name,)) for name in parameters]

    def reduction(
        self,
        measure: SampleMeasure,
        blocks: Sequence[Block],
        parameters: Mapping[str, nn.Parameter],
        known: Mapping[str, Tensor],
    ) -> Reduction:
        """Return the sum of φ of every weight, as for a diagonal."""
        return DiagonalReduction(measure.phi, parameters)

    def matrices(
        self, measure: SampleMeasure, blocks: Sequence[Block], means: Mapping[str, Tensor]
    ) -> dict[str, Matrix]:
        """Return the mean over the weights of each unit."""
        omegas = {block: measure.transform(means[block.name]) for block in blocks}
        return {
            block.name: UnitMatrix(block, omega.reshape(omega.shape[:1].numel(), -1).mean(1), omega.shape)
            for block, omega in omegas.items()
        }

    def restore(self, block: Block, tensors: Mapping[str, Tensor], parameters: Mapping[str, Tensor]) -> Matrix:
        """Return s, one number for each unit of the parameter."""
        shape = parameters[block.name].shape
        if {name: tuple(tensor.shape) for name, tensor in tensors.items()} != {"s": (shape[:1].numel(),)}:
            raise anchorhold.errors.StateError(
                f"The importance of {block.name!r} is of another model, or of another form."
            )
        return UnitMatrix(block, tensors["s"], shape)
