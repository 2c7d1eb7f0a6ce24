"""What an engine tells while it runs, and what it leaves when it has finished: the same for every engine."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Protocol

from torch import Tensor

from anchorhold_lab.training.telling.retention import Seen, TaskRetention

TELL_EVERY = 1.0
"""Seconds after which an engine tells where it stands, if no epoch has ended before."""


@dataclass(frozen=True)
class Progress:
    """Where a run stands: told about once a second, after every epoch and after every task."""

    task: int
    """The current task, counted from 0."""
    tasks: int
    step: int
    """The steps taken in this task."""
    steps: int
    """The steps that this task has."""
    epochs: int
    """The epochs that this task has."""
    seconds: float
    """The time since the task began, or since the run was resumed within it."""
    losses: tuple[float, ...] = ()
    """The last step's loss, for each run side by side."""
    learned: bool = False
    """Whether the task has just been learned; the outcomes then have a row for it."""
    seen: tuple[Seen, ...] = ()
    """How each run side by side is held and what it has lost, where that is not in its spec, or inputs are kept."""

    @property
    def epoch(self) -> int:
        """The current epoch, counted from 0."""
        return min(self.epochs - 1, self.step * self.epochs // self.steps)


@dataclass
class Outcome:
    """What came out of one run so far."""

    untrained: list[float]
    """The untrained network's accuracy on every task."""
    matrix: list[list[float]] = field(default_factory=list)
    """Row i: the accuracy on every task after learning task i."""
    failure: str | None = None
    """Why the run cannot go on, if it cannot; runs beside it are not affected."""
    retention: list[TaskRetention] = field(default_factory=list)
    """How each task was held, and what was left of those before it, for runs that note it."""
    strength_record: dict[str, float | None] | None = None
    """c, κ, T and tr Q after the last task that has ended."""


class Engine(Protocol):
    """Something that learns, be it one run or several side by side."""

    task: int
    step: int

    @property
    def outcomes(self) -> list[Outcome]:
        """What came out so far, for each run."""

    @property
    def observations(self) -> list[dict[str, dict[str, Any]]]:
        """What observers have seen so far, for each run, by the observer's name."""

    def learn(self) -> Iterator[Progress]:
        """Learn all tasks that are left. At every pause :meth:`state` is exact."""

    def state(self) -> dict[str, Any]:
        """Return everything needed to go on exactly: dicts, lists, numbers, strings and tensors."""

    def load_state(self, state: dict[str, Any]) -> None:
        """Go on from a state."""


def diverged(loss: float, task: int, step: int, inputs: Tensor) -> str:
    """Return why a run failed whose loss is no number any more; task and step are counted from 0.

    The inputs are those of all training samples of the task, which may be to blame.
    """
    where = f"The loss is {loss} at step {step + 1} of task {task + 1}: "
    spoilt = int((~inputs.isfinite()).flatten(1).any(1).sum())
    if spoilt:
        return f"{where}{spoilt} of its {len(inputs)} training samples have NaN or infinity in them. Leave them out."
    return f"{where}training has diverged. Try a smaller learning rate or strength."
