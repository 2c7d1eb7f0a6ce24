"""What state in 16 bits costs in precision: the same training with Ω and anchor in single precision and in bfloat16."""

import math
from collections.abc import Iterator

import torch
from torch import Tensor, nn

import anchorhold
from anchorhold_lab.analysis import Estimate, estimate
from anchorhold_lab.data import digits_dataset, load
from anchorhold_lab.scenarios import Scenario, permuted
from benchmarks.harness import Ratio, Report

STRENGTHS = {"SOS": 1.0, "SI": 0.2, "EWC": 1000.0}
"""The paper's for Permuted MNIST."""
TASKS, STEPS, BATCH, WIDTH, SEEDS = 3, 3000, 128, 200, 8
NOTES = [
    (
        f"{TASKS} tasks of Permuted MNIST, {STEPS} steps each, 784-{WIDTH}-{WIDTH}-10, Adam, batch {BATCH}, {SEEDS} "
        "seeds, without re-initialisation, SI with ξ = 0.1. state_dtype=torch.bfloat16 keeps Ω and anchor in 16 bits, "
        "the running state in 32 and θ(0) as precisely as the weights."
    ),
    (
        "Ω: a second guard with 16-bit state watches a run that one with 32 bits holds, so that both see one path. "
        "Pearson correlation over all weights, and the largest relative error of a weight's Ω above a thousandth of "
        "the largest, after the last task; the worst of all seeds. Each task rounds the total once, by 2⁻⁸ at most."
    ),
    (
        "Accuracy, in per cent over all tasks' test samples: runs held by 16-bit state, against runs held by 32 bits. "
        "Two runs of one seed drift apart after any rounding, so the means over seeds are compared, with the standard "
        "error of their difference."
    ),
]


PRECISIONS = {"32 bits": None, "16 bits": torch.bfloat16}


def run(quick: bool) -> Iterator[Report]:
    report = Report("state", "Ω and accuracy with state in 16 bits, against 32", NOTES, {})
    data = digits_dataset() if quick else load("MNIST")
    seeds, steps = (1, 20) if quick else (SEEDS, STEPS)
    lines = ["| measure | state | accuracy | each seed |", "|---|---|---|---|"]
    for measure, strength in STRENGTHS.items():
        found: dict[str, Estimate] = {}
        for name, dtype in PRECISIONS.items():
            # One scenario at a time: each has the images three times over.
            runs = [
                _learn(permuted(data, tasks=TASKS, seed=seed), measure, strength, dtype, seed, steps)
                for seed in range(seeds)
            ]
            found[name] = estimate([accuracy for accuracy, _ in runs])
            each = ", ".join(f"{accuracy:.2f}" for accuracy, _ in runs)
            lines.append(f"| {measure} | {name} | {found[name].mean:.2f} ± {found[name].error:.2f} | {each} |")
            if dtype is None:
                pairs = [pair for _, pair in runs]
        report.ratios.append(
            Ratio(f"{measure}: correlation of Ω", min(map(_correlation, pairs)), 0.9999, at_least=True)
        )
        report.ratios.append(Ratio(f"{measure}: largest relative error of Ω", max(map(_largest_error, pairs))))
        lost = found["32 bits"].mean - found["16 bits"].mean
        error = math.hypot(found["32 bits"].error, found["16 bits"].error)
        report.ratios.append(Ratio(f"{measure}: accuracy lost (± {error:.2g})", lost, unit=" points"))
    report.details["Every run"] = lines
    yield report


def _learn(
    scenario: Scenario, measure: str, strength: float, dtype: torch.dtype | None, seed: int, steps: int
) -> tuple[float, tuple[Tensor, Tensor]]:
    """Return the average accuracy after the last task, and the Ω of both precisions along this run."""
    torch.manual_seed(seed)
    tasks = scenario.tasks
    inputs = tasks[0].train.x.shape[1]
    layers = [nn.Linear(inputs, WIDTH), nn.ReLU(), nn.Linear(WIDTH, WIDTH), nn.ReLU(), nn.Linear(WIDTH, 10)]
    model = nn.Sequential(*layers)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.001)
    guard = anchorhold.Guard(model, measure, strength=strength, options=anchorhold.GuardOptions(state_dtype=dtype))
    watcher = anchorhold.Guard(
        model, measure, strength=strength, options=anchorhold.GuardOptions(state_dtype=torch.bfloat16)
    )
    watcher.attach(optimizer, hold=False)  # the first to look, so that it sees the task's gradient alone
    guard.attach(optimizer)
    for task in tasks:
        x, y = task.train.x, task.train.y
        for _ in range(steps):
            batch = torch.randint(len(x), (BATCH,))
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(x[batch]), y[batch]).backward()
            optimizer.step()
        for each in (guard, watcher):
            each.consolidate([(x[:1000], y[:1000])])
    with torch.no_grad():
        hits = [(model(task.test.x).argmax(1) == task.test.y).double().mean() for task in tasks]
    whole, rounded = (torch.cat([v.double().flatten() for v in g.importance.values()]) for g in (guard, watcher))
    return 100 * float(torch.stack(hits).mean()), (whole, rounded)


def _correlation(pair: tuple[Tensor, Tensor]) -> float:
    return float(torch.corrcoef(torch.stack(pair))[0, 1])


def _largest_error(pair: tuple[Tensor, Tensor]) -> float:
    whole, rounded = pair
    counted = whole > whole.max() / 1000
    return float(((rounded - whole).abs() / whole)[counted].max())
