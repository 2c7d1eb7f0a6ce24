"""The probe "path": the path integral with the full gradient, and the decrease in loss that it should track."""

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from anchorhold.errors import ConfigurationError
from anchorhold.guard import TaskImportance
from anchorhold.tensors.names import named_parameters
from anchorhold_lab.analysis.probes.base import Probe
from anchorhold_lab.analysis.probes.full_gradient import full_gradient, full_loss
from anchorhold_lab.analysis.probes.sampled_steps import estimate_total, stratified_sample
from anchorhold_lab.training import Learner


class Path(Probe):
    r"""Measures :math:`-\sum_t \nabla L(\theta_t)\cdot\Delta_t` over a task's steps t and all protected weights.

    L is the mean cross-entropy over all training samples of the task, dropout off and without penalty, and
    :math:`\Delta_t = \theta_{t+1}-\theta_t` the step as it was taken. A full gradient is one pass over the data, so a
    random sample of the steps can stand for all of them: an unbiased one, with a standard error of its own.

    For each task it notes ``full_path`` with ``full_path_error`` (0 if every step was seen), ``sampled`` and ``steps``,
    how many steps were seen and how many there were, ``loss_before`` and ``loss_after``, L(θ(0)) and L(θ(T)), and the
    ``step`` and ``product`` −∇L·Δ of each step seen. The loss falls also by what unprotected weights learn, such as a
    task's own head; ``head_path``, ``head_path_error`` and ``head_product`` are the same sum over these.

    Args:
        seed: decides which steps are sampled.
        size: how many steps of each task, an even number; all by default.
    """

    def __init__(self, *, seed: int, size: int | None = None) -> None:
        super().__init__()
        if size is not None and (size < 2 or size % 2):
            raise ConfigurationError(
                f"path:{size}: expected an even number of steps, two from each stretch of a task, or 'path' for all."
            )
        self.seed = seed
        self.size = size
        self._before: dict[str, Tensor] = {}
        self._gradient: dict[str, Tensor] = {}

    def wanted_steps(self, task: int, steps: int) -> Sequence[int]:
        """Return all steps, or the sample."""
        if self.size is None:
            return range(steps)
        return stratified_sample(steps, self.size, seed=self.seed, task=task)

    def task_begun(self, learner: Learner, task: int) -> None:
        """Note L(θ(0))."""
        self.tasks.append({"loss_before": full_loss(learner, task), "step": [], "product": [], "head_product": []})

    def before_step(self, learner: Learner, task: int, step: int) -> None:
        """Compute ∇L(θ_t), and keep θ_t: the parameters themselves change in place."""
        parameters = dict(named_parameters(learner.model))
        self._gradient = full_gradient(learner, task, parameters)
        self._before = {name: p.detach().clone() for name, p in parameters.items()}

    def after_step(self, learner: Learner, task: int, step: int) -> None:
        """Note −∇L·Δ, of protected weights and of the others."""
        products = {
            name: -(self._gradient[name] * (p.detach().double() - self._before[name].double())).sum()
            for name, p in named_parameters(learner.model)
        }
        protected = torch.stack([products.pop(name) for name in learner.guard.parameters]).sum().item()
        entry = self.tasks[-1]
        entry["step"].append(step)
        entry["product"].append(protected)
        entry["head_product"].append(torch.stack(list(products.values())).sum().item() if products else 0.0)
        self._gradient, self._before = {}, {}

    def task_ended(self, learner: Learner, task: int, found: Mapping[str, TaskImportance]) -> None:
        """Note the integral, and L(θ(T))."""
        entry, steps = self.tasks[-1], learner.task_steps(task)
        seen = steps if self.size is None else self.size
        for name in ("", "head_"):
            total, error = estimate_total(entry[f"{name}product"], steps, seen)
            path = f"{name or 'full_'}path"
            entry.update({path: total, f"{path}_error": error})
        entry.update(sampled=len(entry["step"]), steps=steps, loss_after=full_loss(learner, task))
