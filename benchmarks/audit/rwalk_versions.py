"""What three public versions of RWalk compute, beside the paper's, from one and the same training.

Written from reading them: the authors' own code (facebookresearch/agem, TensorFlow 1), Avalanche's plugin and FACIL's
approach. Only the second can be installed beside this library, and has its rows in the audit's table; here all of them
follow the same steps, in float64.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn, optim
from torch.nn import functional as F

from anchorhold import Guard, RWalk
from anchorhold.measures.recurrences import add_to_path_, distance_score
from benchmarks.audit.problem import Problem

Weights = dict[str, Tensor]

EVERY = 10


@dataclass(frozen=True)
class Step:
    """One step of the optimiser."""

    gradient: Weights
    """That of the task's loss on the step's batch."""
    before: Weights
    after: Weights


@dataclass(frozen=True)
class Task:
    """The steps of one task, and what is measured when it is over."""

    steps: Sequence[Step]
    at_end: Weights
    """The mean over batches of the squared gradient of a batch, with the labels that the network finds likeliest."""


def authors(tasks: Sequence[Task]) -> Weights:
    """Squares of batches' gradients, summed over the task so far; no ½; clamped by interval; s grows by (s + w)/2."""
    names = list(tasks[0].at_end)
    fisher, score = ({name: torch.zeros_like(tasks[0].at_end[name]) for name in names} for _ in range(2))
    for number, task in enumerate(tasks):
        squares, gained, new = ({name: torch.zeros_like(fisher[name]) for name in names} for _ in range(3))
        start = task.steps[0].before
        for i, step in enumerate(task.steps):
            if (i + 1) % EVERY == 0:  # before the step, and with F as it was
                for name in names:
                    way = fisher[name] * (step.before[name] - start[name]) ** 2 + 1e-3
                    new[name] += (gained[name] / way).clamp(min=0)
                    fisher[name] = 0.1 * fisher[name] + 0.9 * squares[name] / EVERY
                    gained[name].zero_()
                start = step.before
            for name in names:
                squares[name] += step.gradient[name] ** 2
                add_to_path_(gained[name], step.gradient[name], step.after[name] - step.before[name])
        score = {name: score[name] + (score[name] + new[name] * (1 if number else 2)) / 2 for name in names}
    return {name: _between(fisher)[name] + _between(score)[name] for name in names}


def avalanche(tasks: Sequence[Task]) -> Weights:
    """Squares of batches' gradients, averaged over steps; ε that of float32; clamped once the tasks are averaged."""
    names = list(tasks[0].at_end)
    fisher: Weights = {}
    score: Weights = {}
    for task in tasks:
        gained, new = ({name: torch.zeros_like(task.at_end[name]) for name in names} for _ in range(2))
        start = task.steps[0].before
        for i, step in enumerate(task.steps):
            squares = {name: g**2 for name, g in step.gradient.items()}
            fisher = {name: 0.9 * squares[name] + 0.1 * fisher.get(name, squares[name]) for name in names}
            for name in names:
                add_to_path_(gained[name], step.gradient[name], step.after[name] - step.before[name])
            if (i + 1) % EVERY == 0:
                for name in names:
                    moved = step.after[name] - start[name]
                    new[name] += distance_score(gained[name], fisher[name], moved, torch.finfo(torch.float32).eps)
                    gained[name].zero_()
                start = step.after
        score = {name: (score[name] + new[name]) / 2 if score else new[name] for name in names}
    most = [max(float(value.max()) for value in values.values()) for values in (fisher, score)]
    return {name: fisher[name] / most[0] + score[name].clamp(min=0) / most[1] for name in names}


def facil(tasks: Sequence[Task]) -> Weights:
    """One interval a task; F after training, by halves; damping 0.1; no ½; nothing is scaled."""
    names = list(tasks[0].at_end)
    fisher, score = ({name: torch.zeros_like(tasks[0].at_end[name]) for name in names} for _ in range(2))
    for task in tasks:
        for name in names:
            gained = torch.zeros_like(fisher[name])
            for step in task.steps:
                add_to_path_(gained, step.gradient[name], step.after[name] - step.before[name])
            fisher[name] = 0.5 * fisher[name] + 0.5 * task.at_end[name]
            way = (task.steps[-1].after[name] - task.steps[0].before[name]) ** 2
            score[name] = (score[name] + (gained / (fisher[name] * way + 0.1)).clamp(min=0)) / 2
    return {name: fisher[name] + score[name] for name in names}


VERSIONS: dict[str, Callable[[Sequence[Task]], Weights]] = {
    "the authors' code": authors,
    "Avalanche": avalanche,
    "FACIL": facil,
}


def trained(
    problem: Problem, batch: int, epochs: int, tasks: int = 2, epsilon: float = 1e-3
) -> tuple[Weights, list[Task]]:
    """Train on permuted pixels without a penalty; return the paper's importances, and the steps for the others."""
    network = problem.network(trained=False).double()
    guard = Guard(network, RWalk(every=EVERY, epsilon=epsilon), strength=0.0, from_scratch=True)
    found = []
    for task in range(tasks):
        order = torch.randperm(problem.inputs.shape[1], generator=torch.Generator().manual_seed(task))
        inputs = problem.inputs[:, order].double()
        optimizer = optim.SGD(network.parameters(), lr=0.1)
        guard.attach(optimizer)
        steps = []
        for chosen in _batches(len(inputs), batch, epochs, task):
            x, y = inputs[chosen], problem.labels[chosen]
            guard.gradients.samples([(x, y)])
            before = _weights(network)
            optimizer.zero_grad()
            F.cross_entropy(network(x), y).backward()
            gradient = {name: p.grad.clone() for name, p in network.named_parameters() if p.grad is not None}
            optimizer.step()
            steps.append(Step(gradient, before, _weights(network)))
        guard.consolidate()
        guard.detach()
        found.append(Task(steps, _likeliest(network, inputs, batch)))
    return guard.importance, found


def _batches(samples: int, batch: int, epochs: int, task: int) -> list[Tensor]:
    generator = torch.Generator().manual_seed(100 + task)
    return [part for _ in range(epochs) for part in torch.randperm(samples, generator=generator).split(batch)]


def _likeliest(network: nn.Module, inputs: Tensor, batch: int) -> Weights:
    squares: Weights = {}
    parts = inputs.split(batch)
    for x in parts:
        outputs = network(x)
        loss = F.cross_entropy(outputs, outputs.argmax(1))
        names, parameters = zip(*network.named_parameters(), strict=True)
        for name, g in zip(names, torch.autograd.grad(loss, parameters), strict=True):
            squares[name] = squares.get(name, 0.0) + g**2 / len(parts)
    return squares


def _between(values: Weights) -> Weights:
    """Return values scaled to 0 … 1 over the network."""
    least = min(float(value.min()) for value in values.values())
    most = max(float(value.max()) for value in values.values())
    return {name: (value - least) / (most - least) for name, value in values.items()}


def _weights(network: nn.Module) -> Weights:
    return {name: p.detach().clone() for name, p in network.named_parameters()}
