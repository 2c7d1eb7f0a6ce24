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

from anchorhold.engine.phi import SQUARE
from anchorhold.engine.reductions import Block, Reduction
from anchorhold.errors import ConfigurationError, ProtectError
from anchorhold.measures import MEASURES
from anchorhold.measures.base import Measure, SampleMeasure
from anchorhold.settings import number, written
from anchorhold.tensors.finite import is_finite

Displacement = Mapping[str, Tensor]
"""Something in the place of a block's weights, such as θ − θ*: by parameter, in the parameters' own shapes."""


class Cost(NamedTuple):
    """What a form takes for one block, in numbers; the bytes depend on their precision."""

    kept: int
    """Numbers that Q is made of."""
    measuring: int
    """Numbers that are added up over samples, in the pass that has most of them."""
    applying: int
    """Multiplications of one application of Q, which is once a step."""
    said: str
    """What Q will be, in a few words."""


class Matrix(ABC):
    """Q of one block."""

    block: Block

    @property
    def said(self) -> str:
        """What it is, in a few words."""
        return type(self).__name__.removesuffix("Matrix").lower()

    @abstractmethod
    def apply(self, d: Displacement) -> dict[str, Tensor]:
        """Return Q(D); the hold's gradient is 2c times that."""

    def value(self, d: Displacement) -> Tensor:
        """Return ⟨D, Q(D)⟩."""
        applied = self.apply(d)
        return torch.stack([(d[name] * applied[name]).sum() for name in applied]).sum()

    def apply_to_product(self, b: Tensor, a: Tensor) -> tuple[Tensor, Tensor] | None:
        """Return Q(BA)Aᵀ and BᵀQ(BA) for D = BA, of outputs × inputs, where that is shorter than by Q(D) itself.

        The gradient of ⟨D, Q(D)⟩ with respect to B and A is twice that. ``None`` where there is no shorter way.
        """
        return None

    @abstractmethod
    def plus(self, earlier: "Matrix", decay: float) -> "Matrix":
        """Return this Q and ``decay`` times that of earlier tasks."""

    def widened(self, block: Block) -> "Matrix":
        """Return the same over a block of other parameters: 0 for those that are new, or refuse what it cannot do."""
        raise ProtectError(
            f"The block {block.name!r} had the parameters {self.block.parameters} when it was consolidated and now has "
            f"{block.parameters}: some were frozen then, or are now. Protect the same ones in every task, or call "
            f"forget({self.block.parameters[0]!r}) to let go of what was learned there."
        )

    @abstractmethod
    def scaled(self, factor: float) -> "Matrix":
        """Return a multiple of Q."""

    @abstractmethod
    def shrink(self, d: Displacement, strength: float) -> dict[str, Tensor]:
        """Return (1 + cQ)⁻¹D: where a step that the hold alone takes, however strong, ends."""

    def pulled(self, d: Displacement, strength: float) -> dict[str, Tensor]:
        """Return what :meth:`shrink` takes off D, cλ/(1 + cλ) along each direction: the smaller, the more precise."""
        shrunk = self.shrink(d, strength)
        return {name: d[name] - each for name, each in shrunk.items()}

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

    def at_hand(self, d: Displacement) -> "Matrix":
        """Return Q where D is, and as precise: it may be kept elsewhere, or in fewer bits."""
        like = next(iter(d.values()))
        device, dtype = like.device, self.products_dtype(like.dtype)
        if all(tensor.device == device and tensor.dtype == dtype for tensor in self.tensors().values()):
            return self
        # First moved, then widened: so fewer bytes go over the bus.
        return self.mapped(lambda tensor: tensor.to(device, non_blocking=device.type != "cpu").to(dtype))

    def products_dtype(self, dtype: torch.dtype) -> torch.dtype:
        """Return in which precision Q is applied to a D of some precision; by default in that one."""
        return dtype

    @property
    def is_finite(self) -> bool:
        """Whether it is made of numbers alone."""
        return all(map(is_finite, self.tensors().values()))


@dataclasses.dataclass(frozen=True)
class Form(ABC):
    """A form, with its settings."""

    name: ClassVar[str]
    """What it is registered as."""

    elementwise: ClassVar[bool] = False
    """Whether Q acts on each weight by itself, so that weights can be walked through in any pieces."""

    @property
    def bears_rounding(self) -> bool:
        """Whether Q pushes nothing away from the anchor once its tensors are rounded to 16 bits."""
        return True

    @property
    def kept_dtype(self) -> torch.dtype | None:
        """The precision in which Q is kept from task to task; ``None`` for that of all that the guard keeps."""
        return None

    @property
    def keeps_coordinates(self) -> bool:
        """Whether Q is kept in coordinates of its own, which nobody has to find before a pull after a step."""
        return False

    @property
    def keeps_equal_once(self) -> bool:
        """Whether blocks may have tensors in common, which are then kept once."""
        return False

    @property
    def held_damping(self) -> float:
        """The share of the mean of all importances that the hold adds to each; 0 where Q has such a share in itself."""
        return 0.0

    @property
    def passes(self) -> int:
        """How many times the engine goes through the samples."""
        return 1

    def takes(self, measure: Measure) -> bool:
        """Whether a measure has an importance in this form: one that is not from data has one number a weight."""
        return self.elementwise or (measure.needs.data and not finishes_by_itself(measure))

    def check(self, measure: Measure) -> None:
        """Refuse a measure that has no importance in this form, and say which have."""
        if not self.takes(measure):
            known = [name for name in MEASURES if self.takes(MEASURES[name]())]
            raise ConfigurationError(
                f"{measure.name} has no importance in the form {self.name!r}. Those that have: {', '.join(known)}; or "
                "take the form 'diagonal', which all have."
            )

    def check_model(self, model: nn.Module, parameters: Mapping[str, Tensor]) -> None:  # noqa: B027 (most take all)
        """Refuse parameters that it cannot keep an importance of, as soon as they are known."""

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

    def learned(
        self,
        blocks: Sequence[Block],
        means: Mapping[str, Tensor],
        earlier: Mapping[str, Matrix],
        decay: float,
    ) -> dict[str, Tensor]:
        """Return what later passes, and :meth:`matrices`, are given of the means so far: by default all of them.

        It is asked after each pass, of several processes on one, so that all of them know the same to the last bit.
        ``earlier`` is Q of the tasks before, to which this one's will be added, and ``decay`` what it is multiplied by.
        """
        return dict(means)

    def measured_together(self, blocks: Sequence[Block], earlier: Mapping[str, Matrix]) -> list[list[Block]]:
        """Return blocks in groups whose members :meth:`learned` has to see at once: by default, each by itself."""
        return [[block] for block in blocks]

    @abstractmethod
    def matrices(
        self, measure: SampleMeasure, blocks: Sequence[Block], means: Mapping[str, Tensor]
    ) -> dict[str, Matrix]:
        """Return Q of every block, by the block's name, from the means of all passes."""

    def cost(self, block: Block, parameters: Mapping[str, Tensor]) -> Cost:
        """Return what a block takes in this form, before anything is measured; by default, as for a diagonal."""
        numel = sum(parameters[name].numel() for name in block.parameters)
        return Cost(numel, numel, numel, "diagonal")

    def cost_of_product(self, block: Block, parameters: Mapping[str, Tensor], rank: int) -> int:
        """Return the multiplications of Q(BA)Aᵀ and BᵀQ(BA), of a product of this rank: by default by BA itself."""
        numel = sum(parameters[name].numel() for name in block.parameters)
        return self.cost(block, parameters).applying + 3 * rank * numel

    def notices(self, blocks: Sequence[Block]) -> list[str]:
        """Return what users should know of how these blocks will be kept, before they are measured."""
        return []

    @abstractmethod
    def restored(self, block: Block, tensors: Mapping[str, Tensor], parameters: Mapping[str, Tensor]) -> Matrix:
        """Return the Q that is made of these tensors, or refuse those of another network."""

    def settings(self) -> dict[str, Any]:
        """Return the form's name and settings as plain values, to be stored with a state."""
        return {"name": self.name, **written(self)}


def checked_damping(given: object) -> float:
    """Return a damping as a ``float``, or say what was expected of it."""
    return float(number("damping", given, "a number of at least 0", lambda value: value >= 0))


def pulled_share(pull: Tensor) -> Tensor:
    """Return a/(1 + a), which is 1 where a pull is beyond all numbers."""
    pull = pull.clamp(max=torch.finfo(pull.dtype).max)
    return pull.div_(1 + pull)  # the clamped one is nobody else's


def finishes_by_itself(measure: Measure) -> bool:
    """Whether a measure makes something of all parameters' means at once, which a matrix would know nothing of."""
    return isinstance(measure, SampleMeasure) and type(measure).finish is not SampleMeasure.finish


def is_mean_of_squares(measure: Measure) -> bool:
    """Whether a measure is a mean of squared gradients and nothing is done to it after, so that it is part of a matrix.

    That matrix is the mean of ggᵀ, of which such a measure is the diagonal.
    """
    if not isinstance(measure, SampleMeasure) or type(measure).transform is not SampleMeasure.transform:
        return False
    if finishes_by_itself(measure):
        return False
    return measure.phi == SQUARE
