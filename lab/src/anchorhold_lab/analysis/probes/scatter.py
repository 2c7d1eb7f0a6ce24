"""The probe "scatter": the importances of some weights, drawn at random, for scatter plots."""

from collections.abc import Mapping

import torch

from anchorhold.guard import TaskImportance
from anchorhold.seeding import generator_for
from anchorhold_lab.analysis.probes.base import Probe
from anchorhold_lab.analysis.weight_rows import after_rescaling, before_rescaling, joined
from anchorhold_lab.training import Learner

POINTS = 10**5
"""As many as the paper's scatter plots show."""


class Scatter(Probe):
    """Keeps the importance of 10⁵ weights, or of all if there are fewer, after the first task and after the last.

    The weights are the same for all measures and both tasks. By the task's number as text, ``tasks`` holds ω and
    ``raw`` holds ω̃ (SI, SIU and SIB before rescaling, every other measure's ω), each by measure.

    Args:
        seed: decides which weights.
    """

    def __init__(self, *, seed: int) -> None:
        super().__init__()
        self.seed = seed
        self.observed = {"tasks": {}, "raw": {}}

    def task_ended(self, learner: Learner, task: int, found: Mapping[str, TaskImportance]) -> None:
        """Keep the weights' importances, if the task is the first or the last."""
        if task not in (0, len(learner.scenario) - 1):
            return
        weights = sum(parameter.numel() for parameter in learner.guard.parameters.values())
        drawn = torch.randperm(weights, generator=generator_for(self.seed, "scatter"))[:POINTS].to(learner.device)
        for key, rows in (
            ("tasks", after_rescaling(learner, found)),
            ("raw", before_rescaling(learner, found)),
        ):
            chosen = {name: joined(row)[drawn].to("cpu", torch.float32) for name, row in rows.items()}
            self.observed[key][str(task)] = chosen
