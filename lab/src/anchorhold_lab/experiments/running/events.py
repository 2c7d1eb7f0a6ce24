"""What :func:`~anchorhold_lab.experiments.execute` tells while it works."""

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from anchorhold_lab.experiments.specs.spec import Spec
from anchorhold_lab.experiments.store.run_results import Result
from anchorhold_lab.training.telling.progress import Outcome, Progress


@dataclass(frozen=True)
class RunStarted:
    """A run begins, or goes on from a checkpoint."""

    spec: Spec
    resumed: bool
    side_by_side: int
    """How many runs train together, this one included."""
    steps: int
    """The steps of all its tasks."""


@dataclass(frozen=True)
class RunProgress:
    """Where the runs that train together stand: about once a second, after every epoch and after every task."""

    specs: tuple[Spec, ...]
    progress: Progress
    outcomes: tuple[Outcome, ...]
    """What came out so far, in the order of the specs."""


@dataclass(frozen=True)
class RunFinished:
    """A run's result is in the store."""

    result: Result


@dataclass(frozen=True)
class RunFailed:
    """A run cannot go on; the reason is in the store, and other runs are not affected."""

    spec: Spec
    reason: str


@dataclass(frozen=True)
class RunSkipped:
    """A run was not begun."""

    spec: Spec
    why: Literal["finished already", "failed before", "being run by another process", "damaged"]
    reason: str = ""
    """Why it failed, or what of it cannot be used."""


@dataclass(frozen=True)
class CheckpointRejected:
    """A checkpoint cannot be used and was kept under another name; the runs go on from an older one, or begin anew."""

    specs: tuple[Spec, ...]
    kept: Path
    reason: str
    going_on: str
    """Where the runs go on: ``"from the beginning"``, or from a step of a task, as in ``"from task 2, step 0"``."""


@dataclass(frozen=True)
class StoreDamaged:
    """Something in the store cannot be used; the runs that it has nothing to do with go on."""

    reason: str
    """Which file it is, and what to do about it."""


Event = RunStarted | RunProgress | RunFinished | RunFailed | RunSkipped | CheckpointRejected | StoreDamaged
