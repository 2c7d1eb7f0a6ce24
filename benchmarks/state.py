"""What state in fewer bits costs in precision: the same training with Ω and anchor in 32, 16 and 8 bits."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

import anchorhold
from anchorhold.tensors.storage import StateDtype
from anchorhold_lab.analysis import estimate
from anchorhold_lab.data import Dataset, digits_dataset, load
from anchorhold_lab.scenarios import Scenario, permuted
from benchmarks.harness import Ratio, Report


@dataclass(frozen=True)
class Comparison:
    """What is trained, and how long."""

    name: str
    what: str
    strengths: Mapping[str, float]
    tasks: int
    steps: int
    batch: int
    width: int
    seeds: int


PERMUTED_MNIST = Comparison(
    "state",
    "Permuted MNIST",
    {"SOS": 1.0, "SI": 0.2, "EWC": 1000.0},  # the paper's
    tasks=3,
    steps=3000,
    batch=128,
    width=200,
    seeds=8,
)
PRECISIONS: Mapping[str, StateDtype | None] = {"32 bits": None, "16 bits": torch.bfloat16, "8 bits": "8bit"}


def run(quick: bool) -> Iterator[Report]:
    data = digits_dataset() if quick else load("MNIST")
    yield compared(replace(PERMUTED_MNIST, seeds=1, steps=20) if quick else PERMUTED_MNIST, data)


def compared(these: Comparison, data: Dataset) -> Report:
    """Return what each measure learns with state in each precision."""
    report = Report(these.name, "Ω and accuracy with state in 16 and in 8 bits, against 32", _notes(these), {})
    lines = ["| measure | state | accuracy | each seed |", "|---|---|---|---|"]
    for measure in these.strengths:
        accuracies: dict[str, list[float]] = {}
        omegas: list[dict[str, Tensor]] = []
        for name in PRECISIONS:
            # One scenario at a time: each has the images once for every task.
            runs = [
                _learn(permuted(data, tasks=these.tasks, seed=seed), these, measure, name, seed)
                for seed in range(these.seeds)
            ]
            own = accuracies[name] = [accuracy for accuracy, _ in runs]
            each = ", ".join(f"{accuracy:.2f}" for accuracy in own)
            lines.append(f"| {measure} | {name} | {estimate(own).mean:.2f} ± {estimate(own).error:.2f} | {each} |")
            omegas = omegas or [found for _, found in runs]
        for name in [*PRECISIONS][1:]:
            pairs = [(found["32 bits"], found[name]) for found in omegas]
            worst, largest = min(map(_correlation, pairs)), max(map(_largest_error, pairs))
            target = 0.9999 if name == "16 bits" else None
            report.ratios.append(Ratio(f"{measure}: correlation of Ω in {name}", worst, target, at_least=True))
            report.ratios.append(Ratio(f"{measure}: largest relative error of Ω in {name}", largest))
            lost = estimate([whole - own for whole, own in zip(accuracies["32 bits"], accuracies[name], strict=True)])
            what = f"{measure}: accuracy lost in {name} (± {lost.error:.2g})"
            report.ratios.append(Ratio(what, lost.mean, unit=" points"))
    report.details["Every run"] = lines
    return report


def _notes(these: Comparison) -> list[str]:
    return [
        (
            f"{these.tasks} tasks of {these.what}, {these.steps} steps each, two hidden layers of {these.width}, Adam, "
            f"batch {these.batch}, {these.seeds} seeds, without re-initialisation, SI with ξ = 0.1, strengths "
            f"{', '.join(f'{name} {c:g}' for name, c in these.strengths.items())}. state_dtype=torch.bfloat16 keeps Ω "
            "and anchor in 16 bits, state_dtype='8bit' Ω in 8 and the anchor in 24; the running state has 32 in all, "
            "and θ(0) is as precise as the weights."
        ),
        (
            "Ω: further guards with fewer bits watch a run that one with 32 holds, so that all see one path. Pearson "
            "correlation over all weights, and the largest relative error of a weight's Ω above a thousandth of the "
            "largest, after the last task; the worst of all seeds. Each task rounds the total once."
        ),
        (
            "Accuracy, in per cent over all tasks' test samples: runs held by state in fewer bits, against runs held "
            "by 32 from the same seed: the mean of the difference, and its standard error."
        ),
    ]


def _learn(
    scenario: Scenario, these: Comparison, measure: str, precision: str, seed: int
) -> tuple[float, dict[str, Tensor]]:
    """Return the average accuracy after the last task, and Ω by precision: along a run with 32 bits, that of all."""
    torch.manual_seed(seed)
    tasks = scenario.tasks
    inputs, width = tasks[0].train.x.shape[1], these.width
    layers = [nn.Linear(inputs, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU(), nn.Linear(width, 10)]
    model = nn.Sequential(*layers)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.001)
    guards = {
        name: anchorhold.Guard(
            model,
            measure,
            strength=these.strengths[measure],
            from_scratch=True,
            options=anchorhold.GuardOptions(state_dtype=dtype),
        )
        for name, dtype in PRECISIONS.items()
        if precision in ("32 bits", name)
    }
    for name, guard in guards.items():
        if name != precision:
            guard.attach(optimizer, hold=False)  # the first to look, so that they see the task's gradient alone
    guards[precision].attach(optimizer)
    for task in tasks:
        x, y = task.train.x, task.train.y
        for _ in range(these.steps):
            batch = torch.randint(len(x), (these.batch,))
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(x[batch]), y[batch]).backward()
            optimizer.step()
        for guard in guards.values():
            guard.consolidate([(x[:1000], y[:1000])])
    with torch.no_grad():
        hits = [(model(task.test.x).argmax(1) == task.test.y).double().mean() for task in tasks]
    omegas = {
        name: torch.cat([omega.double().flatten() for omega in guard.importance.values()])
        for name, guard in guards.items()
    }
    return 100 * float(torch.stack(hits).mean()), omegas


def _correlation(pair: tuple[Tensor, Tensor]) -> float:
    return float(torch.corrcoef(torch.stack(pair))[0, 1])


def _largest_error(pair: tuple[Tensor, Tensor]) -> float:
    whole, rounded = pair
    counted = whole > whole.max() / 1000
    return float(((rounded - whole).abs() / whole)[counted].max())
