r"""What a form is: in which space importance is kept, and how it is applied.

The hold on a block of parameters is :math:`c\langle D, Q(D)\rangle` with :math:`D = \theta - \theta^*`. A
:class:`Form` says which parameters make a block, what the per-sample engine has to add up, and how many passes over the
samples that takes; a :class:`Matrix` is the Q of one block, symmetric and positive semi-definite.
"""

import dataclasses
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor, nn

from holdfast.errors import ConfigurationError
from holdfast.measures.base import Measure, SampleMeasure
from holdfast.persample.reductions import Reduction
from holdfast.settings import written
from holdfast.tensors.sharding import local

Displacement = Mapping[str, Tensor]
"""Something in the place of a block's weights, such as θ − θ*: by parameter, in the parameters' own shapes."""


class Block(NamedTuple):
    """Parameters that belong together, such as the weight and the bias of a layer."""

    name: str
    parameters: tuple[str, ...]


class Matrix(ABC):
    """Q of one block."""

    block: Block

    @abstractmethod
    def apply(self, d: Displacement) -> dict[str, Tensor]:
        """Return Q(D); the hold's gradient is 2c times that."""

    def value(self, d: Displacement) -> Tensor:
        """Return ⟨D, Q(D)⟩."""
        applied = self.apply(d)
        return torch.stack([(d[name] * applied[name]).sum() for name in applied]).sum()

    @abstractmethod
    def plus(self, earlier: "Matrix", decay: float) -> "Matrix":
        """Return this Q and ``decay`` times that of earlier tasks."""

    @abstractmethod
    def scaled(self, factor: float) -> "Matrix":
        """Return a multiple of Q."""

    @abstractmethod
    def shrink(self, d: Displacement, strength: float) -> dict[str, Tensor]:
        """Return (1 + cQ)⁻¹D: where a step that the hold alone takes, however strong, ends."""

    @abstractmethod
    def solve(self, b: Displacement, damping: float = 0.0) -> dict[str, Tensor]:
        """Return (Q + damping)⁻¹B; along directions where that is 0, nothing."""

    @abstractmethod
    def diagonal(self) -> dict[str, Tensor]:
        """Return the diagonal in the weights' own coordinates, for reading."""

    @abstractmethod
    def trace(self) -> Tensor:
        """Return the sum of the eigenvalues."""

    @abstractmethod
    def largest_eigenvalue(self) -> Tensor:
        """Return the largest eigenvalue, which bounds the strengths that are stable at a learning rate."""

    @abstractmethod
    def tensors(self) -> dict[str, Tensor]:
        """Return all that it is made of by name, to be saved, and to be restored by its form."""

    @abstractmethod
    def mapped(self, change: Callable[[Tensor], Tensor]) -> "Matrix":
        """Return the same with each of its tensors changed: moved, or in another precision."""

    @property
    def is_finite(self) -> bool:
        """Whether it is made of numbers alone."""
        return all(bool(local(tensor).isfinite().all()) for tensor in self.tensors().values())


@dataclasses.dataclass(frozen=True)
class Form(ABC):
    """A form, with its settings."""

    name: ClassVar[str]
    """What it is registered as."""

    elementwise: ClassVar[bool] = False
    """Whether Q acts on each weight by itself, so that weights can be walked through in any pieces."""

    passes: ClassVar[int] = 1
    """How many times the engine goes through the samples."""

    def check(self, measure: Measure) -> None:
        """Refuse a measure that has no importance in this form: one that is not from data has one number a weight."""
        if not self.elementwise and not measure.needs.data:
            raise ConfigurationError(
                f"{measure.name} finds one number a weight, so it has no importance in the form {self.name!r}. Take a "
                "measure that looks at data, such as Fisher(), or the form 'diagonal'."
            )

    @abstractmethod
    def blocks(self, model: nn.Module, parameters: Mapping[str, Tensor]) -> list[Block]:
        """Return which of some parameters belong together; each of them is in one block."""

    @abstractmethod
    def reduction(
        self,
        measure: SampleMeasure,
        blocks: Sequence[Block],
        parameters: Mapping[str, nn.Parameter],
        known: Mapping[str, Tensor],
    ) -> Reduction:
        """Return what the engine is to add up in its next pass, given the means of the passes before it by name."""

    @abstractmethod
    def matrices(
        self, measure: SampleMeasure, blocks: Sequence[Block], means: Mapping[str, Tensor]
    ) -> dict[str, Matrix]:
        """Return Q of every block, by the block's name, from the means of all passes."""

    @abstractmethod
    def restored(self, block: Block, tensors: Mapping[str, Tensor], parameters: Mapping[str, Tensor]) -> Matrix:
        """Return the Q that is made of these tensors, or refuse those of another network."""

    def settings(self) -> dict[str, Any]:
        """Return the form's name and settings as plain values, to be stored with a state."""
        return {"name": self.name, **written(self)}
