"""The loss of a task and its gradient, over all training samples, without leaving a trace in the run."""

from collections.abc import Iterator, Mapping

import torch
from torch import Tensor, nn

from anchorhold.engine.isolation import isolated
from anchorhold.tensors.matrices import tf32_allowed
from anchorhold_lab.analysis.whole_loss import loss_and_gradient
from anchorhold_lab.scenarios import Samples
from anchorhold_lab.training import Learner


def full_loss(learner: Learner, task: int) -> float:
    """Return L, the mean cross-entropy over a task's training samples, dropout off and without penalty."""
    total = torch.zeros((), dtype=torch.float64, device=learner.device)
    with isolated(learner.model, learner.guard.parameters.values()), torch.no_grad():
        for part in loss_in_parts(learner, task):
            total += part
    return total.item()


def loss_in_parts(learner: Learner, task: int) -> Iterator[Tensor]:
    """Yield what batches of a task's training samples add to L, one after another."""
    samples = learner.samples(task)
    for x, y in _batches(samples):
        yield learner.loss(x, y, task) * (len(y) / len(samples))


def full_gradient(
    learner: Learner, task: int, parameters: Mapping[str, nn.Parameter] | None = None
) -> dict[str, Tensor]:
    """Return ∇L by name, in float64, with respect to the protected parameters unless others are given."""
    return mean_gradient(learner, task, learner.samples(task), parameters)


def mean_gradient(
    learner: Learner, task: int, samples: Samples, parameters: Mapping[str, nn.Parameter] | None = None
) -> dict[str, Tensor]:
    """Return the gradient of the mean cross-entropy over some samples of a task, dropout off and without penalty.

    On a GPU, products are as in TF32 where the run computes with fewer digits than float32 itself: never with fewer
    than TF32's, which no sampling of steps would notice, and at several times the speed. What they give is added up in
    float64.
    """
    parameters = learner.guard.parameters if parameters is None else parameters
    with isolated(learner.model, parameters.values()), tf32_allowed(learner.precision != "fp32", learner.device):
        parts = ((learner.loss(x, y, task), len(y) / len(samples)) for x, y in _batches(samples))
        return loss_and_gradient(parts, parameters)[1]


def squared_norm(gradient: dict[str, Tensor]) -> float:
    """Return ‖g‖² over all parameters together."""
    return torch.stack([value.square().sum() for value in gradient.values()]).sum().item()


def _batches(samples: Samples) -> Iterator[tuple[Tensor, Tensor]]:
    # Enough to fill an accelerator, little enough for a CPU's cache.
    batch = 1000 if samples.x.device.type == "cpu" else 5000
    return zip(samples.x.split(batch), samples.y.split(batch), strict=True)
