"""Weights between two models: what is left of both tasks, by the way they are merged and by how far apart they lie.

`python -m studies.merging` writes results/merging.md: trainings of MNIST networks, from one model that all others
start from, and merges of each with it. It needs MNIST (`anchorhold-lab data fetch mnist`); a few minutes.
"""

import argparse
import copy
import json
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import anchorhold
from anchorhold.forms import Form
from anchorhold.merging import Merging
from anchorhold.merging.between import Normalise
from anchorhold_lab.analysis.repetitions import standard_error
from anchorhold_lab.data import load
from anchorhold_lab.data.images import scaled
from benchmarks.harness import surroundings
from benchmarks.undamped import undamped

SEEDS = range(3)
BATCH, RATE, FIRST = 128, 1e-3, 1500
SIDE, HIDDEN = 14, 100
"""Images are means over squares of two by two pixels."""
SAMPLES = 1000
"""Of each task, that forms are measured on."""
SHARES = (0.3, 0.5, 0.7)
SEVERAL = 5
"""How many models are merged where it is more than two."""

Samples = tuple[Tensor, Tensor]


@dataclass(frozen=True)
class Second:
    """What the second model has learned."""

    name: str
    steps: int
    change: Callable[[Tensor, int], Tensor]
    from_first: bool = True
    """Whether it goes on from the first model, and not from first weights of its own."""


def permuted(x: Tensor, seed: int) -> Tensor:
    """Return the images with their pixels in the order of a seed."""
    return x[:, torch.randperm(SIDE**2, generator=torch.Generator().manual_seed(seed))]


def turned(x: Tensor, _: int) -> Tensor:
    """Return the images turned by 40 degrees."""
    angle = torch.tensor(40.0).deg2rad()
    matrix = torch.tensor([[angle.cos(), -angle.sin(), 0.0], [angle.sin(), angle.cos(), 0.0]])
    found = []
    for part in x.split(5000):
        grid = F.affine_grid(matrix.expand(len(part), 2, 3), [len(part), 1, SIDE, SIDE], align_corners=False)
        found.append(F.grid_sample(part.reshape(-1, 1, SIDE, SIDE), grid, align_corners=False).flatten(1))
    return torch.cat(found)


SECONDS = [
    Second("pixels in another order, 1,500 steps from other first weights", 1500, permuted, from_first=False),
    Second("pixels in another order, 1,500 steps", 1500, permuted),
    Second("pixels in another order, 100 steps", 100, permuted),
    Second("images turned by 40°, 1,500 steps", 1500, turned),
    Second("images turned by 40°, 100 steps", 100, turned),
]

FORMS: dict[str, Form | str | None] = {
    "average": None,
    "Fisher": "diagonal",
    "RegMean": anchorhold.Kronecker(outputs="identity", damping=0.0),
    "Kronecker": undamped("kronecker"),
    "rotated": undamped("rotated"),
}
CHOICES: list[tuple[Normalise, float]]
CHOICES = [("network", 0.1), ("layers", 0.1), ("network", 1e-3), ("network", 1.0)]
"""How forms are made comparable, and how they are damped: the first is the default."""
COMPARED = "pixels in another order, 1,500 steps"
"""Where all of them are tried."""


def network() -> nn.Sequential:
    """Return the network, with first weights that torch draws."""
    return nn.Sequential(
        nn.Linear(SIDE**2, HIDDEN), nn.ReLU(), nn.Linear(HIDDEN, HIDDEN), nn.ReLU(), nn.Linear(HIDDEN, 10)
    )


def train(model: nn.Module, samples: Samples, steps: int) -> None:
    """Train by Adam on batches that torch draws."""
    x, y = samples
    optimizer = torch.optim.Adam(model.parameters(), lr=RATE)
    for _ in range(steps):
        chosen = torch.randint(len(y), (BATCH,))
        optimizer.zero_grad()
        F.cross_entropy(model(x[chosen]), y[chosen]).backward()
        optimizer.step()


@torch.no_grad()
def accuracy(model: nn.Module, samples: Samples) -> float:
    """Return the accuracy in per cent."""
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
        """Return the task whose images are changed like that."""
        return cls(*((change(x), y) for x, y in data))


def distance(one: nn.Module, other: nn.Module) -> float:
    """Return how far two models lie apart, by the length of the first."""
    a, b = (torch.cat([p.detach().flatten() for p in model.parameters()]) for model in (one, other))
    return float((a - b).norm() / a.norm())


def guarded(model: nn.Module, form: Form | str, task: Task) -> anchorhold.Guard:
    """Return a guard that has consolidated the task."""
    guard = anchorhold.Guard(model, anchorhold.Fisher(), form=form)
    guard.consolidate(task.train[0][:SAMPLES].split(250))
    return guard


def _at(between: Merging, share: float | list[float]) -> dict[str, Any]:
    weights = between.at(share)
    assert isinstance(weights, dict)
    return weights


def between_two(
    before: nn.Module, after: nn.Module, tasks: tuple[Task, Task], quick: bool, every_choice: bool
) -> list[dict[str, Any]]:
    """Return what each way of merging comes to, with the share that is best on validation data."""
    rows = []
    probe = copy.deepcopy(before)
    shares = (0.3, 0.7) if quick else SHARES
    for name, form in FORMS.items():
        guards = None if form is None else [guarded(m, form, t) for m, t in zip((before, after), tasks, strict=True)]
        choices = CHOICES if every_choice and form is not None and name != "Kronecker" else CHOICES[:1]
        ways: list[tuple[str, anchorhold.Guard | list[anchorhold.Guard] | None, Normalise, float]]
        ways = [(name, guards, *choice) for choice in choices]
        if guards and name != "Kronecker":
            ways.append((f"{name}, of the first model alone", guards[0], *CHOICES[0]))
        for said, by, normalise, damping in ways:
            between = Merging(before, after, by=by, normalise=normalise, damping=damping)
            found = {}
            for share in shares:
                probe.load_state_dict(_at(between, share))
                found[share] = [[accuracy(probe, getattr(t, part)) for t in tasks] for part in ("validation", "test")]
            best = max(found, key=lambda share: sum(found[share][0]))
            old, new = found[best][1]
            rows.append(
                {"way": said, "normalise": normalise, "damping": damping, "share": best, "old": old, "new": new}
            )
    return rows


def between_several(models: Sequence[nn.Module], tasks: list[Task]) -> list[dict[str, Any]]:
    """Return what equal shares of several models come to."""
    rows = []
    probe = copy.deepcopy(models[0])
    for name, form in FORMS.items():
        guards = None if form is None else [guarded(m, form, t) for m, t in zip(models, tasks, strict=True)]
        shares = [1 / len(models)] * (len(models) - 1)
        probe.load_state_dict(_at(Merging(models[0], models[1:], by=guards), shares))
        rows.append({"way": name, "average": statistics.mean(accuracy(probe, task.test) for task in tasks)})
    return rows


def run(seed: int, data: tuple[Samples, Samples, Samples], quick: bool) -> list[dict[str, Any]]:
    """Train and merge all that is compared, for one seed."""
    torch.manual_seed(seed)
    rows: list[dict[str, Any]] = []

    def tell(row: dict[str, Any]) -> None:
        rows.append({"seed": seed} | row)
        print(json.dumps(rows[-1], ensure_ascii=False), flush=True)

    # Whoever turns images starts from images as they are, whoever reorders pixels from an order of its own.
    firsts: dict[Callable[[Tensor, int], Tensor], Task]
    firsts = {permuted: Task.of(data, lambda x: permuted(x, 1000 + seed)), turned: Task.of(data, lambda x: x)}
    starts: dict[Callable[[Tensor, int], Tensor], nn.Sequential] = {}
    for change, task in firsts.items():
        starts[change] = network()
        train(starts[change], task.train, 50 if quick else FIRST)
    for second in SECONDS:
        before = starts[second.change]

        def changed(x: Tensor, second: Second = second) -> Tensor:
            return second.change(x, 2000 + seed)

        other = Task.of(data, changed)
        after = copy.deepcopy(before) if second.from_first else network()
        train(after, other.train, 20 if quick else second.steps)
        tasks = firsts[second.change], other
        case = {"second": second.name, "distance": distance(before, after)}
        for way, model in (("the first model", before), ("the second model", after)):
            old, new = (accuracy(model, task.test) for task in tasks)
            tell(case | {"way": way, "old": old, "new": new})
        for row in between_two(before, after, tasks, quick, second.name == COMPARED):
            tell(case | row)
    models, orders = [starts[permuted]], [firsts[permuted]]
    for k in range(1, SEVERAL):
        orders.append(Task.of(data, partial(permuted, seed=3000 + 100 * k + seed)))
        models.append(copy.deepcopy(models[-1]))
        train(models[-1], orders[-1].train, 20 if quick else FIRST)
    tell(
        {
            "several": SEVERAL,
            "way": "the last model",
            "average": statistics.mean(accuracy(models[-1], t.test) for t in orders),
        }
    )
    for row in between_several(models, orders):
        tell({"several": SEVERAL} | row)
    return rows


def means(rows: list[dict[str, Any]], key: str) -> str:
    """Return the mean over seeds with its standard error."""
    values = [float(row[key]) for row in rows]
    if not values:
        return ""
    error = standard_error(values) if values[1:] else 0.0
    return f"{statistics.mean(values):.1f} ± {error:.1f}"


def grouped(rows: list[dict[str, Any]], *keys: str) -> dict[tuple[object, ...], list[dict[str, Any]]]:
    """Return the rows by their values of some keys."""
    found: dict[tuple[object, ...], list[dict[str, Any]]] = {}
    for row in rows:
        found.setdefault(tuple(row.get(key) for key in keys), []).append(row)
    return found


def page(rows: list[dict[str, Any]], where: dict[str, str]) -> str:
    """Return the rows as a page, and where they were measured."""
    rows = [row | {"average": row.get("average", (row.get("old", 0.0) + row.get("new", 0.0)) / 2)} for row in rows]
    lines = ["# Merging: what is left of both tasks", "", *(f"- {key}: {value}" for key, value in where.items()), ""]
    lines += [
        (
            f"MNIST at {SIDE}×{SIDE} pixels, {SIDE**2}-{HIDDEN}-{HIDDEN}-10, Adam with a rate of {RATE:g}, batches of "
            f"{BATCH}, {len(SEEDS)} seeds. The first model learns for {FIRST:,} steps, the second one goes on from it "
            "unless it says otherwise. "
            f"Forms are the Fisher information of {SAMPLES:,} samples of each model's own task. Test accuracy in per "
            f"cent and its standard error, with the share of {SHARES} that is best on validation data; the distance is "
            "|θ − θ₀|/|θ₀|."
        ),
        "",
    ]
    two = [row for row in rows if "second" in row]
    usual = [
        row
        for row in two
        if row.get("normalise", CHOICES[0][0]) == CHOICES[0][0] and row.get("damping", CHOICES[0][1]) == CHOICES[0][1]
    ]
    for (second,), own in grouped(usual, "second").items():
        apart = statistics.mean(float(row["distance"]) for row in own)
        lines += [f"## {str(second).capitalize()}: distance {apart:.2f}", ""]
        lines += ["| | first task | second task | average | share |", "|---|---|---|---|---|"]
        for (way,), runs in grouped(own, "way").items():
            share = "" if "share" not in runs[0] else f"{statistics.mean(row['share'] for row in runs):.2f}"
            cells = [str(way), *(means(runs, key) for key in ("old", "new", "average")), share]
            lines.append(f"| {' | '.join(cells)} |")
        lines.append("")
    lines += [f"## {SEVERAL} orders of pixels, one after another, merged with equal shares", ""]
    lines += ["| | average over all tasks |", "|---|---|"]
    several = grouped([row for row in rows if "several" in row], "way")
    lines += [f"| {way} | {means(runs, 'average')} |" for (way,), runs in several.items()] + [""]
    lines += [f"## How forms are made comparable, and damped: average of both tasks, {COMPARED}", ""]
    names = [f"{normalise}, {damping:g}" for normalise, damping in CHOICES]
    lines += [f"| | {' | '.join(names)} |", f"|---|{'---|' * len(names)}"]
    compared = [row for row in two if row["second"] == COMPARED and "normalise" in row]
    for (way,), own in grouped(compared, "way").items():
        cells = [means([r for r in own if (r["normalise"], r["damping"]) == choice], "average") for choice in CHOICES]
        if all(cells):
            lines.append(f"| {way} | {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def main() -> None:
    """Run the study, and write its results."""
    parser = argparse.ArgumentParser(prog="python -m studies.merging", description=__doc__)
    parser.add_argument("--results", type=Path, default=Path("results"), help="where to write (default: %(default)s)")
    parser.add_argument("--data-dir", type=Path, help="where MNIST is")
    parser.add_argument("--quick", action="store_true", help="a rehearsal: few steps, one seed, nothing written")
    options = parser.parse_args()
    mnist = load("MNIST", options.data_dir)
    x, y, test_x, test_y = (
        each
        for images in (mnist.train, mnist.test)
        for each in (F.avg_pool2d(scaled(images.pixels), 2).flatten(1), torch.as_tensor(images.labels))
    )
    data = ((x[:50000], y[:50000]), (x[50000:], y[50000:]), (test_x, test_y))
    rows = [row for seed in (range(1) if options.quick else SEEDS) for row in run(seed, data, options.quick)]
    where = surroundings("merging") | {"command": "python -m studies.merging"}
    if options.quick:
        print(page(rows, where))
        return
    (options.results / "merging.md").write_text(page(rows, where), encoding="utf-8")
    document = {**where, "rows": rows}
    (options.results / "merging.json").write_text(
        json.dumps(document, indent=1, ensure_ascii=False) + "\n", encoding="utf-8"
    )
