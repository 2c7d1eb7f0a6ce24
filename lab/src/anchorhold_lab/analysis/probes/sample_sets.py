"""The probe "sample-sets": how far MAS and AF agree depends on the samples that both look at."""

from collections.abc import Mapping

import torch

from anchorhold.errors import ConfigurationError
from anchorhold.guard import TaskImportance
from anchorhold.measures import SampleMeasure, measure
from anchorhold.seeding import generator_for
from anchorhold_lab.analysis.pearson import CoMoments
from anchorhold_lab.analysis.probes.base import Probe
from anchorhold_lab.analysis.weight_rows import pieces_of_rows
from anchorhold_lab.training import Learner

COMPARED = ("MAS", "AF")
_AT_ONCE = 500


class SampleSets(Probe):
    """Measures MAS and AF anew from several random sets of training samples, after the first task.

    Each set has as many samples as the run's measures look at. The task's entry has ``samples``, and ``correlations``,
    Pearson's over all protected weights, one a set: one network, so that what varies is the samples alone.

    Args:
        seed: decides which samples.
        sets: how many sets.
    """

    def __init__(self, *, seed: int, sets: int = 30) -> None:
        super().__init__()
        if sets < 1:
            raise ConfigurationError(f"sample-sets:{sets}: expected at least one set.")
        self.seed = seed
        self.sets = sets

    def task_ended(self, learner: Learner, task: int, found: Mapping[str, TaskImportance]) -> None:
        """Draw the sets, if the task is the first, and note the correlations."""
        if task:
            return
        samples, head = learner.samples(task), learner.scenario.tasks[task].head
        size = min(learner.settings.samples or len(samples), len(samples))
        generator = generator_for(self.seed, "sample sets")
        noted = []
        for _ in range(self.sets):
            chosen = samples.select(torch.randperm(len(samples), generator=generator)[:size].to(learner.device))
            batches = list(zip(chosen.x.split(_AT_ONCE), chosen.y.split(_AT_ONCE), strict=True))
            rows = []
            for name in COMPARED:
                made = measure(name)
                assert isinstance(made, SampleMeasure)
                parameters = dict(learner.guard.parameters)
                found_here = made.measure(
                    learner.model, batches, parameters=parameters, forward=lambda model, x: model(x, head)
                )
                rows.append({parameter: found_here[parameter] for parameter in parameters})
            moments = CoMoments(len(rows), learner.device)
            for piece in pieces_of_rows(rows):
                moments.add(piece)
            noted.append(float(moments.correlations()[0, 1]))
        self.tasks.append({"samples": size, "correlations": noted})
