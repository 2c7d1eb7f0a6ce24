"""Weights between two models: what is left of both tasks, by the way they are merged and by how far apart they lie.

`python -m benchmarks.merging` writes results/merging.md: trainings of MNIST networks, from one model that all others
start from, and merges of each with it. It needs MNIST (`holdfast data fetch mnist`); a few minutes.
"""

import argparse
import copy
import json
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import holdfast
from benchmarks.harness import surroundings
from holdfast.lab.data import load
from holdfast.lab.data.images import scaled
from holdfast.merging import Merging

SEEDS = range(3)
BATCH, RATE, FIRST = 128, 1e-3, 1500
SAMPLES = 1000
"""Of each task, that forms are measured on."""
SHARES = (0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9)
HIDDEN = 100

Samples = tuple[Tensor, Tensor]


@dataclass(frozen=True)
class Second:
    """What the second model has learned."""

    name: str
    steps: int
    change: Callable[[Tensor, int], Tensor]


def permuted(x: Tensor, seed: int) -> Tensor:
    return x[:, torch.randperm(784, generator=torch.Generator().manual_seed(seed))]


def turned(x: Tensor, seed: int) -> Tensor:
    """Return the images turned by 40 degrees."""
    angle = torch.tensor(40.0).deg2rad()
    matrix = torch.tensor([[angle.cos(), -angle.sin(), 0.0], [angle.sin(), angle.cos(), 0.0]])
    found = []
    for part in x.split(5000):
        grid = F.affine_grid(matrix.expand(len(part), 2, 3), [len(part), 1, 28, 28], align_corners=False)
        found.append(F.grid_sample(part.reshape(-1, 1, 28, 28), grid, align_corners=False).flatten(1))
    return torch.cat(found)


SECONDS = [
    Second("pixels in another order, 1,500 steps", 1500, permuted),
    Second("pixels in another order, 100 steps", 100, permuted),
    Second("images turned by 40°, 1,500 steps", 1500, turned),
    Second("images turned by 40°, 100 steps", 100, turned),
]

FORMS: dict[str, object] = {
    "average": None,
    "Fisher": "diagonal",
    "RegMean": holdfast.Kronecker(outputs="identity"),
    "Kronecker": "kronecker",
    "rotated": "rotated",
}
CHOICES = [("network", 1e-4), ("layers", 1e-4), ("network", 1e-2), ("network", 1e-6)]
"""How forms are made comparable, and how they are damped: the first is the default."""


def network() -> nn.Sequential:
    return nn.Sequential(nn.Linear(784, HIDDEN), nn.ReLU(), nn.Linear(HIDDEN, HIDDEN), nn.ReLU(), nn.Linear(HIDDEN, 10))


def train(model: nn.Module, samples: Samples, steps: int) -> None:
    x, y = samples
    optimizer = torch.optim.Adam(model.parameters(), lr=RATE)
    for _ in range(steps):
        chosen = torch.randint(len(y), (BATCH,))
        optimizer.zero_grad()
        F.cross_entropy(model(x[chosen]), y[chosen]).backward()
        optimizer.step()


@torch.no_grad()
def accuracy(model: nn.Module, samples: Samples) -> float:
    x, y = samples
    return 100 * float((model(x).argmax(1) == y).float().mean())


@dataclass(frozen=True)
class Task:
    """What is learned from, what shares are chosen by, and what is judged by."""

    train: Samples
    validation: Samples
    test: Samples

    @classmethod
    def of(cls, data: tuple[Samples, Samples, Samples], change: Callable[[Tensor], Tensor]) -> "Task":
        return cls(*((change(x), y) for x, y in data))


def distance(one: nn.Module, other: nn.Module) -> float:
    """Return how far two models lie apart, by the length of the first."""
    a, b = (torch.cat([p.detach().flatten() for p in model.parameters()]) for model in (one, other))
    return float((a - b).norm() / a.norm())


def guarded(model: nn.Module, form: object, task: Task) -> holdfast.Consolidator:
    guard = holdfast.Consolidator(model, holdfast.Fisher(), form=form)
    guard.consolidate(task.train[0][:SAMPLES].split(250))
    return guard


def merged_rows(
    before: nn.Module, after: nn.Module, tasks: tuple[Task, Task], shares: tuple[float, ...], quick: bool
) -> list[dict[str, object]]:
    """Return what each way of merging comes to, with the share that is best on validation data."""
    rows = []
    probe = copy.deepcopy(before)
    for name, form in FORMS.items():
        guards = None if form is None else [guarded(m, form, t) for m, t in zip((before, after), tasks, strict=True)]
        ways: list[tuple[str, object, str, float]] = [
            (name, guards, normalise, damping)
            for normalise, damping in (CHOICES[:1] if form is None or quick else CHOICES)
        ]
        if guards:
            ways.append((f"{name}, of the first model alone", guards[0], *CHOICES[0]))
        for said, by, normalise, damping in ways:
            between = Merging(before, after, by=by, normalise=normalise, damping=damping)
            found, started = {}, time.perf_counter()
            for share in shares:
                probe.load_state_dict(between.at(share))
                found[share] = [[accuracy(probe, getattr(t, part)) for t in tasks] for part in ("validation", "test")]
            best = max(found, key=lambda share: sum(found[share][0]))
            old, new = found[best][1]
            row = {"way": said, "normalise": normalise, "damping": damping, "share": best, "old": old, "new": new}
            rows.append(row | {"seconds": (time.perf_counter() - started) / len(shares)})
    return rows


def run(
    seed: int, data: tuple[Samples, Samples, Samples], seconds: list[Second], quick: bool
) -> list[dict[str, object]]:
    torch.manual_seed(seed)
    first = Task.of(data, lambda x: permuted(x, 1000 + seed))
    plain = Task.of(data, lambda x: x)
    starts = {}
    rows = []
    for second in seconds:
        # Whoever turns images starts from images as they are, whoever reorders pixels from another order.
        own = first if second.change is permuted else plain
        if own not in starts.values():
            model = network()
            train(model, own.train, 50 if quick else FIRST)
            starts[second.change] = own
            trained = {second.change: model}
        before = trained[second.change]
        other = Task.of(data, lambda x, second=second: second.change(x, 2000 + seed))
        after = copy.deepcopy(before)
        train(after, other.train, 20 if quick else second.steps)
        tasks = own, other
        case = {"seed": seed, "second": second.name, "distance": distance(before, after)}
        for way, model in (("the first model", before), ("the second model", after)):
            old, new = (accuracy(model, task.test) for task in tasks)
            rows.append(case | {"way": way, "old": old, "new": new})
            print(json.dumps(rows[-1], ensure_ascii=False), flush=True)
        for row in merged_rows(before, after, tasks, (0.3, 0.7) if quick else SHARES, quick):
            rows.append(case | row)
            print(json.dumps(rows[-1], ensure_ascii=False), flush=True)
    return rows
