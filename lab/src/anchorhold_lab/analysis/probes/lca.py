"""The probe "lca": which weights lowered the loss, and how that relates to what the measures found."""

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from anchorhold.guard import TaskImportance
from anchorhold.settings import number
from anchorhold_lab.analysis.loss_change import LossChangeAllocation
from anchorhold_lab.analysis.pearson import CoMoments
from anchorhold_lab.analysis.probes.base import Probe
from anchorhold_lab.analysis.probes.full_gradient import loss_in_parts
from anchorhold_lab.analysis.weight_rows import before_rescaling, pieces_of_rows
from anchorhold_lab.training import Learner

TOLERANCE = 1e-4
"""Unless another is named."""


class LossChanges(Probe):
    """Allocates the decrease of the loss to the weights, at every step.

    See :class:`~anchorhold_lab.analysis.LossChangeAllocation`. L is the mean cross-entropy over all training samples of
    the task, dropout off and without penalty. For each task it notes

    - ``decrease``, what the steps lowered L by, from ``loss_before`` to ``loss_after`` (``elsewhere`` is what it fell
      by between steps, by statistics of batch norm); ``sum``, the parts of all protected weights, ``head_sum``, those
      of all others, ``error``, by how much both together are above the decrease, and ``sums`` by parameter;
    - ``helps``, ``hurts`` and ``zeros``: the shares of pairs of a protected weight and a step that lowered the loss,
      raised it, and did neither;
    - ``steps``, ``splits``, ``most_splits``, ``split_steps`` and ``unsettled``: how many steps there were, how often
      they were split, the most in one step, how many were, and how many are further off than the tolerance;
    - ``left_end``, the sum over all protected weights that the full gradient of each step's beginning alone gives, and
      ``left_end_correlation`` with their parts;
    - by measure, ``raw_sums`` and ``correlations``: the sum of ω̃ over all protected weights, which for SI, SIU and SIB
      should be ``sum``, and its Pearson correlation with their parts (ω for other measures).

    Each step takes two passes over the task's samples, forward and backward, and two more for each split.

    Args:
        tolerance: how far a step's sum over weights may be from its decrease of L.
    """

    def __init__(self, tolerance: float = TOLERANCE) -> None:
        super().__init__()
        self.tolerance = number("lca", tolerance, "a tolerance above 0, such as 'lca:1e-5'", lambda value: value > 0)
        self._allocation: LossChangeAllocation | None = None
        self._resumed: dict[str, Any] = {}

    def wanted_steps(self, task: int, steps: int) -> Sequence[int]:
        """Return all steps."""
        return range(steps)

    def task_begun(self, learner: Learner, task: int) -> None:
        """Forget the task before."""
        self._allocation, self._resumed = None, {}

    def before_step(self, learner: Learner, task: int, step: int) -> None:
        """Look at the weights before a step."""
        self._of(learner, task).begin()

    def after_step(self, learner: Learner, task: int, step: int) -> None:
        """Allocate what the step changed."""
        self._of(learner, task).end()

    def task_ended(self, learner: Learner, task: int, found: Mapping[str, TaskImportance]) -> None:
        """Note the task's entry."""
        self.tasks.append(_entry(self._of(learner, task), learner, found))
        self._allocation, self._resumed = None, {}

    def _of(self, learner: Learner, task: int) -> LossChangeAllocation:
        """Return the allocation of the current task, going on from what was found before a stop."""
        if self._allocation is None:
            self._allocation = LossChangeAllocation(
                learner.model, lambda: loss_in_parts(learner, task), tolerance=self.tolerance
            )
            if self._resumed:
                self._allocation.load_state_dict(self._resumed)
        return self._allocation

    def state(self) -> dict[str, Any]:
        """Return all that was observed, and what was found within the current task."""
        running = self._resumed if self._allocation is None else self._allocation.state_dict()
        return {**self.observed, **({"running": running} if running else {})}

    def load_state(self, state: dict[str, Any]) -> None:
        """Go on from a state."""
        self.observed = {"tasks": state["tasks"]}
        self._allocation, self._resumed = None, state.get("running", {})


def _entry(allocation: LossChangeAllocation, learner: Learner, found: Mapping[str, TaskImportance]) -> dict[str, Any]:
    sums = {name: float(value.sum()) for name, value in allocation.by_weight.items()}
    # What was frozen had no part in any step.
    still = {
        name: torch.zeros_like(p, dtype=torch.float64, requires_grad=False)
        for name, p in learner.guard.parameters.items()
    }
    protected, left_end = (
        {name: found_of.get(name, none) for name, none in still.items()}
        for found_of in (allocation.by_weight, allocation.left_end)
    )
    counts = [allocation.counts[name] for name in protected if name in allocation.counts]
    pairs = sum(sum(each.values()) for each in counts)
    rows = before_rescaling(learner, found)
    moments = CoMoments(2 + len(rows), learner.device)
    for piece in pieces_of_rows([protected, left_end, *rows.values()]):
        moments.add(piece)
    total = sum(sums.get(name, 0.0) for name in protected)
    sums_of, correlations = moments.sums.tolist(), moments.correlations()[0].tolist()
    return {
        **{name: getattr(allocation, name) for name in _NOTED},
        **{which: sum(each[which] for each in counts) / pairs for which in ("helps", "hurts", "zeros")},
        "sum": total,
        "head_sum": sum(sums.values()) - total,
        "sums": sums,
        "left_end": sums_of[1],
        "left_end_correlation": correlations[1],
        "raw_sums": dict(zip(rows, sums_of[2:], strict=True)),
        "correlations": dict(zip(rows, correlations[2:], strict=True)),
    }


_NOTED = (
    *("decrease", "loss_before", "loss_after", "elsewhere", "error"),
    *("steps", "splits", "most_splits", "split_steps", "unsettled"),
)
