"""The three kinds of measure, and the few verbs that each of them has.

- A :class:`PathMeasure` watches every optimiser step: ``update_`` at each, ``importance`` at the end of the task.
- A :class:`SampleMeasure` looks at data after training: ``accumulator`` collects batches.
- A :class:`WeightMeasure` looks at the weights alone: ``importance``.

A measure is a frozen dataclass that holds settings and no state; whoever uses it keeps the state.
"""

import dataclasses
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from holdfast.persample.batches import Forward
from holdfast.persample.engine import SampleAccumulator
from holdfast.persample.phi import Phi
from holdfast.persample.scores import Score
from holdfast.settings import written


@dataclasses.dataclass(frozen=True)
class Measure(ABC):
    """How important each weight is for what was learned."""

    choose_when: ClassVar[str]
    """One line on when to choose it."""

    @property
    def replaces_total(self) -> bool:
        """Whether a new task's importance takes the place of the total, instead of being added to it."""
        return False

    @property
    def clamps_total(self) -> bool:
        """Whether negative importances stay in the total, which is clamped at 0 only where it is used."""
        return False

    @property
    def name(self) -> str:
        """The name that the paper gives it."""
        return type(self).__name__

    def settings(self) -> dict[str, Any]:
        """Return the measure's kind and settings as plain values, to be stored with its state."""
        return {"kind": type(self).__name__, **written(self)}

    def _set(self, name: str, value: object) -> None:
        """Replace a setting while the measure is made, by the same one as a Python number."""
        object.__setattr__(self, name, value)


class PathMeasure(Measure):
    """A measure that is taken along the training path, one optimiser step after another."""

    slot: ClassVar[str]
    """What its running state is called."""

    needs_step: ClassVar[bool]
    """Whether it uses Δ, and so has to wait until the step has been taken."""

    @property
    def needs_gradient(self) -> bool:
        """Whether it uses g, the gradient of the step's own batch."""
        return True

    @property
    def needs_independent_gradient(self) -> bool:
        """Whether each step needs g′, a second estimate of the gradient."""
        return False

    def check_step(self, samples: int | None) -> None:
        """Refuse a step that cannot be measured, before anything is; ``samples`` as in :meth:`update_`."""

    @abstractmethod
    def update_(
        self, state: Tensor, gradient: Tensor, independent: Tensor | None, step: Tensor | None, samples: int | None
    ) -> None:
        """Take one training step into ``state``, in place.

        Args:
            state: the running state of some parameters, zeros at the start of a task.
            gradient: g, the task's gradient before the step.
            independent: g′, where the measure needs it.
            step: Δ, where the measure needs it.
            samples: how many samples each of the gradients is the mean of, where known.
        """

    @abstractmethod
    def importance(self, state: Tensor, displacement: Tensor, steps: int) -> Tensor:
        """Return the task's importance.

        Args:
            state: the running state after the task's last step.
            displacement: θ(T) − θ(0), from before the task's first step to after its last.
            steps: how many steps were taken.
        """


class SampleMeasure(Measure):
    """A measure that is taken from data after training, through the per-sample engine."""

    @property
    @abstractmethod
    def score(self) -> Score:
        """What is differentiated."""

    @property
    @abstractmethod
    def phi(self) -> Phi:
        """What is done to each element of a gradient before it is averaged."""

    @property
    @abstractmethod
    def sample_limit(self) -> int | None:
        """How many samples to use; ``None`` for every one that is given."""

    @property
    def draw_seed(self) -> int | None:
        """The seed of drawn labels, for measures that draw them."""
        return None

    def transform(self, mean: Tensor) -> Tensor:
        """Return the importance, given the mean over samples."""
        return mean

    def accumulator(
        self,
        model: nn.Module,
        parameters: Mapping[str, nn.Parameter] | None = None,
        forward: Forward | None = None,
        task: int = 0,
    ) -> SampleAccumulator:
        """Return a collector of batches; ``task`` varies the labels drawn, where any are."""
        generator = None
        if self.draw_seed is not None:
            device = next(model.parameters()).device
            generator = torch.Generator(device).manual_seed(self.draw_seed * 1_000_003 + task)
        return SampleAccumulator(
            model,
            self.score,
            self.phi,
            parameters=parameters,
            forward=forward,
            samples=self.sample_limit,
            generator=generator,
        )

    def measure(
        self,
        model: nn.Module,
        batches: Iterable[Any],
        *,
        parameters: Mapping[str, nn.Parameter] | None = None,
        forward: Forward | None = None,
    ) -> dict[str, Tensor]:
        """Return the importance of every parameter, by name: the whole measure in one call."""
        found = self.accumulator(model, parameters, forward).result_of(batches)
        return {name: self.transform(mean) for name, mean in found.values.items()}


class WeightMeasure(Measure):
    """A baseline that needs neither data nor training, only the weights."""

    @abstractmethod
    def importance(self, parameter: Tensor) -> Tensor:
        """Return the importance of a parameter's weights."""
