"""What all probes share."""

from collections.abc import Mapping, Sequence
from typing import Any

from anchorhold.guard import TaskImportance
from anchorhold_lab.training import Learner


class Probe:
    """An observer that gathers an entry for every task, and by itself asks for nothing else.

    Its state is all that it has observed; the last entry of a run that is within a task may be incomplete.
    """

    def __init__(self) -> None:
        self.observed: dict[str, Any] = {"tasks": []}

    @property
    def tasks(self) -> Any:
        """The entries of all tasks so far."""
        return self.observed["tasks"]

    def wanted_steps(self, task: int, steps: int) -> Sequence[int]:
        """Return the steps to look at."""
        return ()

    def task_begun(self, learner: Learner, task: int) -> None:
        """Look at the weights before the task's first step."""

    def before_step(self, learner: Learner, task: int, step: int) -> None:
        """Look at the weights just before a wanted step."""

    def after_step(self, learner: Learner, task: int, step: int) -> None:
        """Look at the weights just after a wanted step."""

    def task_ended(self, learner: Learner, task: int, found: Mapping[str, TaskImportance]) -> None:
        """Look at what every measure has found for the task."""

    def state(self) -> dict[str, Any]:
        """Return all that was observed."""
        return self.observed

    def load_state(self, state: dict[str, Any]) -> None:
        """Go on from a state."""
        self.observed = state
