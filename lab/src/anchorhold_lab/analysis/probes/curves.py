"""The probe "curves": what SI, SIU and the full gradient add up to as a task goes on, beside the loss."""

import itertools
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from anchorhold.errors import ConfigurationError
from anchorhold_lab.analysis.probes.base import Probe
from anchorhold_lab.analysis.probes.full_gradient import full_gradient, full_loss, mean_gradient
from anchorhold_lab.analysis.probes.sampled_steps import stratified_sample, stretches
from anchorhold_lab.training import Learner


class Curves(Probe):
    r"""Notes :math:`-g_t\cdot\Delta_t` over all protected weights at steps of the first task, for three gradients.

    ``SI`` takes that of the step's own batch, ``SIU`` that of the second batch, which took no part in the step, and
    ``full gradient`` that of all training samples: what the three measures add at this step. ``loss`` is L before it.
    :func:`running_sums` makes curves of them.

    Args:
        seed: decides which steps are sampled.
        size: how many steps, an even number; all by default.
    """

    def __init__(self, *, seed: int, size: int | None = None) -> None:
        super().__init__()
        if size is not None and (size < 2 or size % 2):
            raise ConfigurationError(
                f"curves:{size}: expected an even number of steps, two from each stretch of a task, or 'curves' for "
                "all."
            )
        self.seed = seed
        self.size = size
        self._before: dict[str, Tensor] = {}
        self._gradients: dict[str, dict[str, Tensor]] = {}

    def wanted_steps(self, task: int, steps: int) -> Sequence[int]:
        """Return steps of the first task alone."""
        if task:
            return ()
        return range(steps) if self.size is None else stratified_sample(steps, self.size, seed=self.seed, task=task)

    def task_begun(self, learner: Learner, task: int) -> None:
        """Begin the first task's entry."""
        if not task:
            entry: dict[str, list[float]] = {name: [] for name in ("loss", "SI", "SIU", "full gradient")}
            self.tasks.append({"steps": learner.task_steps(task), "step": [], **entry})

    def before_step(self, learner: Learner, task: int, step: int) -> None:
        """Compute the three gradients, and keep θ: the parameters themselves change in place."""
        samples = learner.samples(task)
        epoch, place = divmod(step, learner.epoch_steps(task))
        batches = {name: learner.order(task, epoch, second=name == "SIU")[place] for name in ("SI", "SIU")}
        self._gradients = {
            name: mean_gradient(learner, task, samples.select(batch.to(learner.device)))
            for name, batch in batches.items()
        }
        self._gradients["full gradient"] = full_gradient(learner, task)
        self._before = {name: p.detach().clone() for name, p in learner.guard.parameters.items()}
        self.tasks[-1]["step"].append(step)
        self.tasks[-1]["loss"].append(full_loss(learner, task))

    def after_step(self, learner: Learner, task: int, step: int) -> None:
        """Note −g·Δ of each."""
        moved = {
            name: p.detach().double() - self._before[name].double() for name, p in learner.guard.parameters.items()
        }
        for gradient, own in self._gradients.items():
            parts = [-(own[name] * moved[name]).sum() for name in moved]
            self.tasks[-1][gradient].append(torch.stack(parts).sum().item())
        self._gradients, self._before = {}, {}


def running_sums(entry: Mapping[str, Sequence[float]], name: str) -> tuple[list[int], list[float]]:
    """Return after how many steps of a task a sum has come how far, estimated where steps were sampled.

    A stretch of steps that two were drawn from adds its length times their mean, which is unbiased.
    """
    seen, steps = len(entry["step"]), int(entry["steps"])  # type: ignore[call-overload]
    values = entry[name]
    if seen == steps:
        return list(range(steps + 1)), list(itertools.accumulate(values, initial=0.0))
    parts = stretches(steps, seen)
    pairs = zip(values[::2], values[1::2], strict=True)
    added = [len(part) * (a + b) / 2 for part, (a, b) in zip(parts, pairs, strict=True)]
    return [0, *(part.stop for part in parts)], list(itertools.accumulate(added, initial=0.0))
