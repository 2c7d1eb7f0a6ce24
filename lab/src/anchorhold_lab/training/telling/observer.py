"""Looking at a run from close by: what an observer is told, and when."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol

from anchorhold.guard import TaskImportance

if TYPE_CHECKING:
    from anchorhold_lab.training.learner import Learner


class Observer(Protocol):
    """Watches one run. Engines call it; it must not change anything about the run."""

    def wanted_steps(self, task: int, steps: int) -> Sequence[int]:
        """Return the steps of a task, counted from 0, that it wants to be told of; each costs a pause."""

    def task_begun(self, learner: "Learner", task: int) -> None:
        """Look at the weights after any re-initialisation, before the task's first step."""

    def before_step(self, learner: "Learner", task: int, step: int) -> None:
        """Look at the weights just before a wanted step."""

    def after_step(self, learner: "Learner", task: int, step: int) -> None:
        """Look at the weights just after a wanted step."""

    def task_ended(self, learner: "Learner", task: int, found: Mapping[str, TaskImportance]) -> None:
        """Look at what every measure has found for the task. The tensors in ``found`` may be reused after this."""

    def state(self) -> dict[str, Any]:
        """Return all that was observed: dicts, lists, numbers, text and tensors. A run can go on from it."""

    def load_state(self, state: dict[str, Any]) -> None:
        """Go on from a state."""
