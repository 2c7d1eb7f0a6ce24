r"""Online EWC: one Fisher information for all tasks, in which old ones fade.

Schwarz et al. 2018, "Progress & Compress" (arXiv 1805.06370), whose knowledge base is held by it.
"""

import dataclasses
from typing import ClassVar

import torch

from anchorhold.measures.base import Finished, TaskRecord
from anchorhold.measures.sampled import Fisher, with_settings
from anchorhold.settings import number, yes_or_no


@with_settings
@dataclasses.dataclass(frozen=True)
class OnlineEWC(Fisher):
    r"""EWC's importance, each task's scaled to a mean of 1, and old ones faded by γ.

    .. math:: F^* \leftarrow \gamma\,F^* + \frac{F}{\operatorname{mean} F}

    The mean is over all protected weights. Schwarz et al. 2018, arXiv 1805.06370.

    Args:
        decay: γ, by which the total is multiplied before a task's importance is added; times the guard's own.
        normalise: whether each task's importance is divided by its mean, so that tasks count alike.
    """

    decay: float = 0.95
    normalise: bool = True

    choose_when: ClassVar[str] = "Many tasks, of which old ones may fade; or tasks whose Fishers differ in size."

    def __post_init__(self) -> None:
        super().__post_init__()
        yes_or_no("normalise", self.normalise)
        expected = "a number from 0 to 1 (1 keeps all)"
        self._set("decay", float(number("decay", self.decay, expected, lambda gamma: 0 <= gamma <= 1)))

    @property
    def name(self) -> str:
        """Its name, whatever its labels."""
        return "online-EWC"

    @property
    def is_in_nats(self) -> bool:
        """False where each task's importance is divided by its mean."""
        return not self.normalise

    def finish(self, task: TaskRecord) -> Finished:
        """Return the Fisher information of the task, scaled."""
        found = super().finish(task).importance
        if not self.normalise:
            return Finished(found)
        weights = task.sum({name: torch.ones_like(omega) for name, omega in found.items()})
        mean = task.sum(found) / max(1.0, weights)
        return Finished({name: omega / (mean or 1.0) for name, omega in found.items()})
