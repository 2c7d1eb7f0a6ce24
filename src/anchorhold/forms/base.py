r"""The two interfaces of a form: a :class:`Form` builds importance, a :class:`Matrix` holds and applies it.

The penalty on a block of parameters is :math:`c\langle D, Q(D)\rangle` with :math:`D = \theta - \theta^*`. A form says
which parameters make a block, what the per-sample engine adds up and in how many passes, and builds Q from the means. A
matrix is the Q of one block, symmetric and positive semi-definite.

**A form from outside** is one file: a frozen dataclass from :class:`Form` with ``blocks``, ``reduction``, ``matrices``
and ``restore``, registered by :func:`~anchorhold.forms.register_form`, and a dataclass from :class:`Matrix` with

==========================================  ========================================================================
``apply``                                   Q(D)
``shrink``, ``solve``                       (1 + cQ)⁻¹D and (Q + λ)⁻¹B
``add``, ``scale``                          Q + γQ′ and sQ
``diagonal``, ``trace``,                    numbers that a user reads, and by which strengths are chosen
``largest_eigenvalue``
``state``                                   its tensors, by the names that a saved state gives them
==========================================  ========================================================================

The others have a default: ``value`` and ``pull`` follow from ``apply`` and ``shrink``, and are overridden where a
formula of their own is shorter or loses fewer digits. ``map`` replaces every tensor in the dataclass's fields, also
inside tuples and other matrices; ``to``, ``to_compute`` and ``is_finite`` follow from ``state`` and ``map``.

**How two are added.** ``matrix.add(earlier, decay)`` returns Q + γQ′ for the last task's Q and the total Q′ of the
tasks before it. It is a method and no operator since the two are not alike: the last task's matrix says how the sum is
kept, and may be in the coordinates of both already. A diagonal and a dense matrix add exactly; a low-rank matrix is cut
to its rank again; a rotated one goes to the eigenbasis of both tasks' factors; a Kronecker product has the sum's trace;
and a :class:`~anchorhold.forms.sums.SumMatrix` keeps every part as it is.

No method changes a matrix or its tensors in place, since both may be shared: layers that see the same inputs have their
input factor in common, and a guard's total and the matrix that its penalty applies are one object where they are equal.
Matrices compare by identity (``eq=False``).
"""

import dataclasses
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar, NamedTuple, Self

import torch
from torch import Tensor, nn

from anchorhold.engine.phi import SQUARE
from anchorhold.engine.reductions import Block, Reduction
from anchorhold.errors import ConfigurationError, ProtectError
from anchorhold.measures import MEASURES
from anchorhold.measures.base import Measure, SampleMeasure
from anchorhold.settings import number, written
from anchorhold.tensors.sharding import is_finite

Displacement = Mapping[str, Tensor]
"""Tensors in the shapes of a block's parameters, by parameter, such as θ − θ*."""


class Cost(NamedTuple):
    """The cost of one block, in numbers; bytes depend on their precision."""

    kept: int
    """Numbers that Q is made of."""
    measuring: int
    """Numbers that are added up over samples, in the pass that has most of them."""
    applying: int
    """Multiplications of one application of Q, which is once a step."""
    description: str
    """Q in a few words."""


@dataclasses.dataclass(eq=False)
class Matrix(ABC):
    """Q of one block: a dataclass of the block, tensors, other matrices, and plain settings."""

    block: Block

    @property
    def description(self) -> str:
        """Q in a few words."""
        return type(self).__name__.removesuffix("Matrix").lower()

    @abstractmethod
    def apply(self, d: Displacement) -> dict[str, Tensor]:
        """Return Q(D); the penalty's gradient is 2c Q(D)."""

    def value(self, d: Displacement) -> Tensor:
        """Return ⟨D, Q(D)⟩."""
        applied = self.apply(d)
        return torch.stack([(d[name] * applied[name]).sum() for name in applied]).sum()

    def apply_to_product(self, b: Tensor, a: Tensor) -> tuple[Tensor, Tensor] | None:
        """Return Q(BA)Aᵀ and BᵀQ(BA), or ``None`` if Q(BA) itself is as short a way.

        With D = BA, outputs × inputs, the gradient of ⟨D, Q(D)⟩ with respect to B and A is twice that.
        """
        return None

    @abstractmethod
    def shrink(self, d: Displacement, strength: float) -> dict[str, Tensor]:
        """Return (1 + cQ)⁻¹D, the proximal point of the penalty ½c⟨D, Q(D)⟩."""

    def pull(self, d: Displacement, strength: float) -> dict[str, Tensor]:
        """Return D − (1 + cQ)⁻¹D, what the proximal step takes off D: cλ/(1 + cλ) along each eigenvector."""
        shrunk = self.shrink(d, strength)
        return {name: d[name] - each for name, each in shrunk.items()}

    @abstractmethod
    def solve(self, b: Displacement, damping: float = 0.0) -> dict[str, Tensor]:
        """Return (Q + damping)⁻¹B, with 0 along eigenvectors where Q + damping is 0."""

    @abstractmethod
    def add(self, earlier: "Matrix", decay: float) -> "Matrix":
        """Return Q + γQ′, with γ the decay and Q′ the earlier tasks' total, a matrix of the same form and block."""

    @abstractmethod
    def scale(self, factor: float) -> "Matrix":
        """Return a multiple of Q."""

    def pad(self, block: Block) -> "Matrix":
        """Return Q over a block of other parameters, 0 for new ones.

        Raise a :class:`~anchorhold.errors.ProtectError` if Q cannot be padded, or a parameter of it is missing.
        """
        raise ProtectError(
            f"The block {block.name!r} had the parameters {self.block.parameters} when it was consolidated and now has "
            f"{block.parameters}: some were frozen then, or are now. Protect the same ones in every task, or call "
            f"forget({self.block.parameters[0]!r}) to delete its importance."
        )

    @abstractmethod
    def diagonal(self) -> dict[str, Tensor]:
        """Return the diagonal of Q in the weights' own coordinates."""

    @abstractmethod
    def trace(self) -> Tensor:
        """Return the sum of the eigenvalues."""

    @abstractmethod
    def largest_eigenvalue(self) -> Tensor:
        """Return the largest eigenvalue, which bounds the strengths that are stable at a learning rate."""

    @abstractmethod
    def state(self) -> dict[str, Tensor]:
        """Return the tensors of Q by name, as they are saved, and as ``Form.restore`` takes them."""

    def map(self, change: Callable[[Tensor], Tensor]) -> Self:
        """Return the same matrix with a function applied to each of its tensors."""
        changed = {}
        for field in dataclasses.fields(self):
            if field.name != "block":
                changed[field.name] = _mapped(getattr(self, field.name), change)
        return dataclasses.replace(self, **changed)

    def to(self, device: torch.device | None = None, dtype: torch.dtype | None = None) -> Self:
        """Return Q on a device and in a dtype; the same object if it is there already."""

        def moved(tensor: Tensor) -> Tensor:
            # First to the device, then to the dtype, so that fewer bytes go over the bus.
            if device is not None and tensor.device != device:
                tensor = tensor.to(device, non_blocking=device.type != "cpu")
            return tensor if dtype is None else tensor.to(dtype)

        for tensor in self.state().values():
            if device not in (None, tensor.device) or dtype not in (None, tensor.dtype):
                return self.map(moved)
        return self

    def to_compute(self, d: Displacement) -> "Matrix":
        """Return Q on D's device, in the dtype in which Q(D) is computed; it may be stored elsewhere, in fewer bits."""
        like = next(iter(d.values()))
        return self.to(like.device, self.compute_dtype(like.dtype))

    def compute_dtype(self, dtype: torch.dtype) -> torch.dtype:
        """Return the dtype in which Q is applied to a D of some dtype."""
        return dtype

    @property
    def is_finite(self) -> bool:
        """True if Q holds neither NaN nor infinity."""
        return all(map(is_finite, self.state().values()))


def _mapped(value: Any, change: Callable[[Tensor], Tensor]) -> Any:
    """Return a field's value with a function applied to each tensor in it."""
    if isinstance(value, Tensor):
        return change(value)
    if isinstance(value, Matrix):
        return value.map(change)
    if isinstance(value, tuple):
        items = [_mapped(item, change) for item in value]
        return type(value)(*items) if hasattr(value, "_fields") else type(value)(items)
    return value


@dataclasses.dataclass(frozen=True)
class Form(ABC):
    """A form, with its settings."""

    name: ClassVar[str] = ""
    """The name that it is registered by; empty for one that is not."""

    elementwise: ClassVar[bool] = False
    """True if Q acts on each weight by itself, so that weights can be updated in pieces of any size."""

    @property
    def supports_bfloat16(self) -> bool:
        """True if Q stays positive semi-definite when its tensors are rounded to bfloat16."""
        return True

    @property
    def storage_dtype(self) -> torch.dtype | None:
        """The dtype in which Q is stored between tasks; ``None`` for the guard's ``state_dtype``."""
        return None

    @property
    def has_eigenbasis(self) -> bool:
        """True if Q is stored along its eigenvectors, so that a proximal step needs no decomposition."""
        return False

    @property
    def has_shared_tensors(self) -> bool:
        """True if blocks may have equal tensors, which are then stored once."""
        return False

    @property
    def has_matrix_per_task(self) -> bool:
        """True if a sum over tasks keeps each task's Q, so that the sum has no eigenbasis."""
        return False

    @property
    def penalty_damping(self) -> float:
        """The share of the mean importance that the penalty adds to every weight; 0 if Q holds its damping itself."""
        return 0.0

    @property
    def passes(self) -> int:
        """The number of passes over the samples."""
        return 1

    def supports(self, measure: Measure) -> bool:
        """Return whether a measure has an importance in this form.

        A measure that is not from data, or that finishes over all parameters at once, is a number a weight.
        """
        return self.elementwise or (measure.needs.data and not finishes_by_itself(measure))

    def check(self, measure: Measure) -> None:
        """Raise a :class:`~anchorhold.errors.ConfigurationError` if a measure has no importance in this form."""
        if not self.supports(measure):
            known = [name for name in MEASURES if self.supports(MEASURES[name]())]
            raise ConfigurationError(
                f"{measure.name} has no importance in the form {self.name!r}. Those that have: {', '.join(known)}; or "
                "take the form 'diagonal', which all have."
            )

    def check_model(self, model: nn.Module, parameters: Mapping[str, Tensor]) -> None:  # noqa: B027 (most take all)
        """Raise an error if the form cannot hold some parameters, as soon as they are known."""

    @abstractmethod
    def blocks(self, model: nn.Module, parameters: Mapping[str, Tensor]) -> list[Block]:
        """Return the parameters in blocks, each of them in one."""

    @abstractmethod
    def reduction(
        self,
        measure: SampleMeasure,
        blocks: Sequence[Block],
        parameters: Mapping[str, nn.Parameter],
        known: Mapping[str, Tensor],
    ) -> Reduction:
        """Return the sums that the engine makes in its next pass.

        Args:
            measure: the measure.
            blocks: the blocks of this pass.
            parameters: their parameters.
            known: the tensors that :meth:`prepare_next_pass` returned after the pass before; nothing in the first.
        """

    def prepare_next_pass(
        self,
        blocks: Sequence[Block],
        means: Mapping[str, Tensor],
        earlier: Mapping[str, Matrix],
        decay: float,
    ) -> dict[str, Tensor]:
        """Return the tensors that the next pass, or :meth:`matrices` after the last, is given: by default all means.

        Of several processes one calls it, after each pass, so that all of them have the same bits.

        Args:
            blocks: the blocks of this pass.
            means: the means so far, by name.
            earlier: Q of the tasks before, to which this task's Q will be added.
            decay: the factor of the earlier Q in that sum.
        """
        return dict(means)

    def coupled_blocks(self, blocks: Sequence[Block], earlier: Mapping[str, Matrix]) -> list[list[Block]]:
        """Return blocks in groups that :meth:`prepare_next_pass` has to be given together; by default, each alone."""
        return [[block] for block in blocks]

    @abstractmethod
    def matrices(
        self, measure: SampleMeasure, blocks: Sequence[Block], means: Mapping[str, Tensor]
    ) -> dict[str, Matrix]:
        """Return Q of every block, by the block's name, from the means of all passes."""

    def cost(self, block: Block, parameters: Mapping[str, Tensor]) -> Cost:
        """Return the cost of a block before it is measured; by default, that of a diagonal."""
        numel = sum(parameters[name].numel() for name in block.parameters)
        return Cost(numel, numel, numel, "diagonal")

    def cost_of_product(self, block: Block, parameters: Mapping[str, Tensor], rank: int) -> int:
        """Return the multiplications of Q(BA)Aᵀ and BᵀQ(BA) for a product BA of a rank; by default, by way of BA."""
        numel = sum(parameters[name].numel() for name in block.parameters)
        return self.cost(block, parameters).applying + 3 * rank * numel

    def notices(self, blocks: Sequence[Block]) -> list[str]:
        """Return messages that a user should see before these blocks are measured."""
        return []

    @abstractmethod
    def restore(self, block: Block, tensors: Mapping[str, Tensor], parameters: Mapping[str, Tensor]) -> Matrix:
        """Return the matrix whose :meth:`anchorhold.forms.Matrix.state` these tensors are.

        Raise a :class:`~anchorhold.errors.StateError` if their names or shapes are those of another network.
        """

    def settings(self) -> dict[str, Any]:
        """Return the form's name and settings as plain values, as a saved state holds them."""
        return {"name": self.name, **written(self)}


def checked_damping(given: object) -> float:
    """Return a damping as a ``float``; raise an error unless it is a number of at least 0."""
    return float(number("damping", given, "a number of at least 0", lambda value: value >= 0))


def pull_share(pull: Tensor) -> Tensor:
    """Return a/(1 + a) for a = cλ; 1 for an infinite a."""
    pull = pull.clamp(max=torch.finfo(pull.dtype).max)
    return pull.div_(1 + pull)  # in place: clamp has made a copy


def finishes_by_itself(measure: Measure) -> bool:
    """Return whether a measure makes its importance of all parameters' means at once."""
    return isinstance(measure, SampleMeasure) and type(measure).finish is not SampleMeasure.finish


def is_mean_of_squares(measure: Measure) -> bool:
    """Return whether a measure is a mean of squared gradients and nothing else: the diagonal of the mean of ggᵀ."""
    if not isinstance(measure, SampleMeasure) or type(measure).transform is not SampleMeasure.transform:
        return False
    return not finishes_by_itself(measure) and measure.phi == SQUARE
