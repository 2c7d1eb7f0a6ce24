"""The probe "noise": how large the noise of a step's gradient is, against the full gradient."""

import math
from collections.abc import Sequence

from anchorhold.errors import ConfigurationError
from anchorhold_lab.analysis.probes.base import Probe
from anchorhold_lab.analysis.probes.full_gradient import mean_gradient, squared_norm
from anchorhold_lab.analysis.probes.sampled_steps import uniform_sample
from anchorhold_lab.training import Learner


class Noise(Probe):
    r"""Compares the gradient g of a step's own batch with the full gradient ∇L, at the same weights θ_t.

    As in the paper's appendix, the noise is :math:`\|g-\nabla L\|^2`, the gradient's size :math:`\|\nabla L\|^2`, both
    over all protected weights. Both gradients are of the task's cross-entropy alone, dropout off.

    For each task it notes, for every step seen, ``step``, ``full`` (the size), ``noise``, and ``ratio`` (noise/full);
    :func:`~anchorhold_lab.analysis.repetitions.shares_at_least` then gives the share of steps above any ratio.

    Args:
        seed: decides which steps are seen.
        size: how many steps of each task, each as likely as any other; all by default.
    """

    def __init__(self, *, seed: int, size: int | None = None) -> None:
        super().__init__()
        if size is not None and size < 1:
            raise ConfigurationError(f"noise:{size}: expected at least one step, or 'noise' for all.")
        self.seed = seed
        self.size = size

    def wanted_steps(self, task: int, steps: int) -> Sequence[int]:
        """Return all steps, or the sample."""
        return range(steps) if self.size is None else uniform_sample(steps, self.size, seed=self.seed, task=task)

    def task_begun(self, learner: Learner, task: int) -> None:
        """Begin a task's entry."""
        self.tasks.append({"step": [], "full": [], "noise": [], "ratio": []})

    def before_step(self, learner: Learner, task: int, step: int) -> None:
        """Note the size of gradient and noise."""
        samples = learner.samples(task)
        epoch, in_epoch = divmod(step, learner.epoch_steps(task))
        batch = learner.order(task, epoch)[in_epoch].to(learner.device)
        gradient = mean_gradient(learner, task, samples)
        own = mean_gradient(learner, task, samples.select(batch))
        full = squared_norm(gradient)
        noise = squared_norm({name: own[name] - value for name, value in gradient.items()})
        seen = {"step": step, "full": full, "noise": noise, "ratio": noise / full if full else math.inf}
        for name, value in seen.items():
            self.tasks[-1][name].append(value)
