r"""The diagonal, :math:`Q(D) = \Omega \circ D`: one number a weight, as EWC, SI, MAS and SOS keep it."""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import ClassVar

import torch
from torch import Tensor, nn

from anchorhold.engine.reductions import Block, DiagonalReduction, Reduction
from anchorhold.errors import StateError
from anchorhold.forms.base import Displacement, Form, Matrix, checked_damping, pull_share
from anchorhold.measures.base import SampleMeasure
from anchorhold.settings import added


@dataclasses.dataclass(eq=False)
class DiagonalMatrix(Matrix):
    """Ω of one parameter, in its shape."""

    block: Block = dataclasses.field(init=False)
    name: str
    omega: Tensor

    def __post_init__(self) -> None:
        self.block = Block(self.name, (self.name,))

    def apply(self, d: Displacement) -> dict[str, Tensor]:
        """Return Ω∘D."""
        return {self.name: self.omega * d[self.name]}

    def value(self, d: Displacement) -> Tensor:
        """Return the sum of Ω D²."""
        return (self.omega * d[self.name].square()).sum()

    def shrink(self, d: Displacement, strength: float) -> dict[str, Tensor]:
        """Return D/(1 + cΩ)."""
        return {self.name: d[self.name] / (1 + strength * self.omega)}

    def pull(self, d: Displacement, strength: float) -> dict[str, Tensor]:
        """Return D·cΩ/(1 + cΩ)."""
        return {self.name: d[self.name] * pull_share(strength * self.omega)}

    def solve(self, b: Displacement, damping: float = 0.0) -> dict[str, Tensor]:
        """Return B/(Ω + damping)."""
        damped = self.omega + damping
        return {self.name: torch.where(damped > 0, b[self.name] / damped, 0.0)}

    def add(self, earlier: Matrix, decay: float) -> "DiagonalMatrix":
        """Return Ω + γΩ′, which is exact."""
        assert isinstance(earlier, DiagonalMatrix)
        return DiagonalMatrix(self.name, torch.add(self.omega, earlier.omega, alpha=decay))

    def scale(self, factor: float) -> "DiagonalMatrix":
        return DiagonalMatrix(self.name, factor * self.omega)

    def diagonal(self) -> dict[str, Tensor]:
        return {self.name: self.omega}

    def trace(self) -> Tensor:
        return self.omega.sum()

    def largest_eigenvalue(self) -> Tensor:
        return self.omega.max() if self.omega.numel() else self.omega.new_zeros(())

    def state(self) -> dict[str, Tensor]:
        """Return Ω, whose name is the parameter's."""
        return {"": self.omega}


@dataclasses.dataclass(frozen=True)
class Diagonal(Form):
    """One number a weight: all measures have it.

    Args:
        damping: a share of the mean importance of all weights, such as 0.01, by which each is held beside its own.
            Without it, a weight of importance 0 is free at any strength. Those of a ReLU unit that no sample of the
            task has made active at its end are such weights, and the unit may be active on that task's samples once
            they have moved. What no task has used yet is held by it as well, such as the heads of tasks to come,
            unless ``protect`` leaves them out.
    """

    damping: float = added(0.0)

    elementwise: ClassVar[bool] = True

    def __post_init__(self) -> None:
        object.__setattr__(self, "damping", checked_damping(self.damping))

    @property
    def penalty_damping(self) -> float:
        """The damping: Ω itself stays as it was measured."""
        return self.damping

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
        return DiagonalReduction(measure.phi, parameters)

    def matrices(
        self, measure: SampleMeasure, blocks: Sequence[Block], means: Mapping[str, Tensor]
    ) -> dict[str, Matrix]:
        return {block.name: DiagonalMatrix(block.name, measure.transform(means[block.name])) for block in blocks}

    def restore(self, block: Block, tensors: Mapping[str, Tensor], parameters: Mapping[str, Tensor]) -> Matrix:
        """Return Ω, of the parameter's shape."""
        if tensors.keys() != {""} or tensors[""].shape != parameters[block.name].shape:
            shapes = {name: tuple(tensor.shape) for name, tensor in tensors.items()}
            raise StateError(
                f"The importance of {block.name!r} is {shapes}; expected one tensor of shape "
                f"{tuple(parameters[block.name].shape)}. The state was made for another model, or with another form."
            )
        return DiagonalMatrix(block.name, tensors[""])
