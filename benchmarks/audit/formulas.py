"""What libraries compute in place of the definitions, written out in float64."""

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from benchmarks.audit.comparison import Importance
from benchmarks.audit.definitions import after_training
from benchmarks.audit.problem import Problem

Formula = Callable[[Problem, int], Importance]


def definition(name: str, *, samples: int = 0, batch_size: int = 0) -> Formula:
    """The definition itself, times these powers of the number of samples and of the batch size."""

    def formula(problem: Problem, batch: int) -> Importance:
        factor = len(problem.labels) ** samples * float(batch) ** batch_size
        return {n: factor * value for n, value in after_training(name, problem).items()}

    return formula


def squared_batch_means(problem: Problem, batch: int) -> Importance:
    """The mean over batches of the square of the batch's mean gradient."""
    return _over_batches(problem, batch, _cross_entropy, torch.square)


def absolute_batch_means(scale: float = 1.0) -> Formula:
    """The mean over batches of the absolute value of the mean gradient of ‖z‖², times a factor."""

    def formula(problem: Problem, batch: int) -> Importance:
        found = _over_batches(problem, batch, _squared_logits, torch.abs)
        return {name: scale * value for name, value in found.items()}

    return formula


def mean_gradient(problem: Problem) -> Importance:
    """The gradient of the mean loss over all samples."""
    return _gradient(problem.network().double(), problem.inputs.double(), problem.labels, _cross_entropy)


def _over_batches(
    problem: Problem, batch: int, loss: Callable[[Tensor, Tensor], Tensor], phi: Callable[[Tensor], Tensor]
) -> Importance:
    network = problem.network().double()
    total = {name: torch.zeros_like(p) for name, p in network.named_parameters()}
    batches = list(zip(problem.inputs.double().split(batch), problem.labels.split(batch), strict=True))
    for inputs, labels in batches:
        for name, gradient in _gradient(network, inputs, labels, loss).items():
            total[name] += phi(gradient) / len(batches)
    return {name: value.detach() for name, value in total.items()}


def _gradient(
    network: nn.Module, inputs: Tensor, labels: Tensor, loss: Callable[[Tensor, Tensor], Tensor]
) -> dict[str, Tensor]:
    parameters = dict(network.named_parameters())
    found = torch.autograd.grad(loss(network(inputs), labels), list(parameters.values()))
    return dict(zip(parameters, found, strict=True))


def _cross_entropy(logits: Tensor, labels: Tensor) -> Tensor:
    return F.cross_entropy(logits, labels)


def _squared_logits(logits: Tensor, _: Tensor) -> Tensor:
    return logits.square().sum(1).mean()
