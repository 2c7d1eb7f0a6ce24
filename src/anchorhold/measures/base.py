"""What a measure is: what a weight is worth, found along the training path, from data, or from the weights alone.

A measure is a frozen dataclass that holds settings and no state; whoever uses it keeps the state. It says what it
:class:`Needs`, which running states it has and how the importances of several tasks become one total, and it is
*finished* at the end of a task, over all parameters at once. Three classes have the usual cases:

- a :class:`PathMeasure` watches every optimizer step: ``update_`` at each, ``importance`` at the end;
- a :class:`SampleMeasure` looks at data after training: a score, and φ of its gradients;
- a :class:`WeightMeasure` looks at the weights: ``importance``.
"""

import dataclasses
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping
from typing import Any, ClassVar, Literal, NamedTuple, Protocol

import torch
from torch import Tensor, nn

from anchorhold.engine.accumulator import SampleAccumulator
from anchorhold.engine.batches import Forward
from anchorhold.engine.phi import Phi
from anchorhold.engine.reductions import Reduction
from anchorhold.engine.scores import Score
from anchorhold.engine.tracing.plan import Plans
from anchorhold.settings import written

States = Mapping[str, Tensor]
"""The running states of some weights by name, all of one shape."""


@dataclasses.dataclass(frozen=True)
class Needs:
    """What a measure has to be given, and so when it is asked."""

    gradient: bool = False
    """g, the task's gradient, before every step."""
    independent: bool = False
    """g′, a second estimate of it that took no part in the step, likewise."""
    step: bool = False
    """Δ, so that it is updated after every step and not before it."""
    number: bool = False
    """How many steps the task has taken before; an engine that records its steps has it on the device alone."""
    data: bool = False
    """Samples, at the end of a task."""
    squares: bool = False
    """The mean of the squared gradients of the step's own samples, before the steps that it wants them of."""

    @property
    def path(self) -> bool:
        """Whether it wants to see every step."""
        return self.gradient or self.independent or self.step


class Seen(NamedTuple):
    """What a measure is shown of one step: tensors of the states' shape, those that it needs."""

    gradient: Tensor
    independent: Tensor | None = None
    step: Tensor | None = None
    samples: int | None = None
    """How many samples each of the gradients is the mean of, where known."""
    number: int | Tensor | None = None
    """How many steps the task has taken before this one; a tensor of one number for measures that count on the device,
    where steps are recorded."""
    squares: Tensor | None = None
    """The mean of the squared gradients of the step's samples, at the steps that they were given for."""


class TaskRecord(Protocol):
    """What is known of a task at its end, parameter by parameter."""

    @property
    def parameters(self) -> Mapping[str, Tensor]:
        """The weights, after the task's last step."""

    def states(self, name: str) -> States | None:
        """Return a parameter's running states; ``None`` if it took no step."""

    def displacement(self, name: str) -> Tensor:
        """Return θ(T) − θ(0), from before a parameter's first step of the task to after its last."""

    def steps(self, name: str) -> int:
        """Return how many steps a parameter took."""

    def anchor(self, name: str) -> Tensor | None:
        """Return θ*, what a parameter was held to in the task; ``None`` in the first."""

    @property
    def means(self) -> Mapping[str, Tensor]:
        """The means over samples, for measures that look at data."""

    def largest(self, values: Mapping[str, Tensor]) -> float:
        """Return the largest of all values, over all parameters and all processes' parts of them."""

    def sum(self, values: Mapping[str, Tensor]) -> float:
        """Return the sum of all values, likewise."""


class Finished(NamedTuple):
    """What a measure found for a task."""

    importance: dict[str, Tensor]
    """ω, by parameter."""
    lasting: dict[str, dict[str, Tensor]] = {}  # noqa: RUF012 (of a named tuple, and never changed)
    """The states that last from task to task as they are from now on: by their names, then by parameter."""


@dataclasses.dataclass(frozen=True)
class Measure(ABC):
    """How important each weight is for what was learned."""

    counts_on_device: ClassVar[bool] = False
    """Whether a step's number may be a tensor, so that steps can be recorded: it is calculated with, and decides
    nothing. Of measures that need it."""
    choose_when: ClassVar[str]
    """One line on when to choose it."""

    @property
    def needs(self) -> Needs:
        """What it has to be given."""
        return Needs()

    @property
    def running(self) -> Mapping[str, Literal["task", "lasting"]]:
        """Its running states by name: zeros at the start of every task, or of the first one alone."""
        return {}

    @property
    def total(self) -> Literal["add", "replace", "average"]:
        """What becomes of the total when a task's importance is taken in."""
        return "add"

    @property
    def decay(self) -> float:
        """γ, by which its total is multiplied before a task's importance is taken in, beside the guard's own."""
        return 1.0

    @property
    def is_in_nats(self) -> bool:
        """Whether ½⟨D, Q(D)⟩ estimates KL(p_old‖p_new) of a sample, in nats, as of a Fisher information it does."""
        return False

    @property
    def clamps_total(self) -> bool:
        """Whether negative importances stay in the total, which is clamped at 0 only where it is used."""
        return False

    @abstractmethod
    def finish(self, task: TaskRecord) -> Finished:
        """Return what the task was worth, over all parameters at once."""

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
    """A measure that is taken along the training path, one optimizer step after another."""

    @property
    @abstractmethod
    def needs(self) -> Needs:
        """What it has to be given at every step."""

    @property
    @abstractmethod
    def running(self) -> Mapping[str, Literal["task", "lasting"]]:
        """Its running states."""

    @property
    def takes_estimates(self) -> bool:
        """Whether several gradients serve it that are independent of each other, though not of the step."""
        return False

    def wants_squares(self, number: int) -> bool:
        """Whether a step cannot do without its samples' squared gradients, by the number of steps before it."""
        return self.needs.squares

    def check_step(self, samples: int | None) -> None:
        """Refuse a step that cannot be measured, before anything is; ``samples`` as in :class:`Seen`."""

    def check_task(self, steps: int) -> None:
        """Refuse a task of so many steps that cannot be measured; called beforehand where that number is known."""

    @abstractmethod
    def update_(self, states: States, seen: Seen) -> None:
        """Take one training step into the states, in place and element by element.

        Tensors of any shape may be given: a parameter, a piece of a large one, or many small ones side by side.
        """

    def update_from_estimates_(
        self,
        states: States,
        mean: Tensor,
        mean_square: Tensor,
        estimates: int,
        samples: int | None,
        number: int | None = None,
    ) -> None:
        """Do the same, given estimates of the gradient that are independent of each other; see ``takes_estimates``.

        Args:
            states: the running states.
            mean: the mean of the estimates.
            mean_square: the mean of their squares.
            estimates: how many there are, at least two.
            samples: how many samples each of them is the mean of, where known.
            number: how many steps the task has taken before, for measures that need it.
        """
        raise TypeError(f"{self.name} has no use for several estimates of the gradient")

    @abstractmethod
    def importance(self, states: States, displacement: Tensor, steps: int) -> Tensor:
        """Return what the task was worth for one parameter.

        Args:
            states: the running states after the task's last step.
            displacement: θ(T) − θ(0), from before the task's first step to after its last.
            steps: how many steps were taken.
        """

    def finish(self, task: TaskRecord) -> Finished:
        """Return the importance of each parameter by itself; one that took no step has 0."""
        found = {}
        for name, parameter in task.parameters.items():
            states = task.states(name)
            if states is None:
                found[name] = torch.zeros_like(parameter)
            else:
                found[name] = self.importance(states, task.displacement(name), task.steps(name))
        return Finished(found)


class SampleMeasure(Measure):
    """A measure that is taken from data after training, through the per-sample engine."""

    @property
    def needs(self) -> Needs:
        return Needs(data=True)

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

    def finish(self, task: TaskRecord) -> Finished:
        """Return the transformed means."""
        return Finished({name: self.transform(mean) for name, mean in task.means.items()})

    def accumulator(
        self,
        model: nn.Module,
        parameters: Mapping[str, nn.Parameter] | None = None,
        forward: Forward | None = None,
        task: int = 0,
        reduction: Callable[[Mapping[str, nn.Parameter]], Reduction] | None = None,
        plans: Plans | None = None,
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
            reduction=reduction,
            plans=plans,
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

    def finish(self, task: TaskRecord) -> Finished:
        """Return the importance of each parameter by itself."""
        return Finished({name: self.importance(parameter) for name, parameter in task.parameters.items()})
