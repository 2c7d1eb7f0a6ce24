"""What state in 16 bits costs in precision: the same training with Ω and anchor in single precision and in bfloat16."""

import statistics
from collections.abc import Iterator

import torch
from torch import nn

import holdfast
from benchmarks.harness import Ratio, Report
from holdfast.data import digits_dataset
from holdfast.scenarios import permuted

STRENGTHS = {"SOS": 10.0, "SI": 1.0, "EWC": 200.0}
STEPS = 3000
BATCH = 64
NOTES = [
    (
        f"Three tasks of permuted digits, {STEPS} steps each, 64-300-300-10, Adam, batch {BATCH}, the same seeds in "
        "both precisions. state_dtype=torch.bfloat16 keeps Ω, anchor and θ(0) in 16 bits and the running state in 32."
    ),
    (
        "Correlation: Pearson, over all weights, of the total Ω after the last task with that of single precision, the "
        "lowest of all seeds. Accuracy: the mean over all tasks' test samples and over seeds, in per cent."
    ),
    "The runs drift apart as any two do that differ by a rounding: that, too, is in these numbers.",
]


def run(quick: bool) -> Iterator[Report]:
    report = Report("state", "Ω and accuracy with state in 16 bits, against 32", NOTES, {})
    seeds, steps = (1, 50) if quick else (3, STEPS)
    lines = ["| measure | precision | accuracy, each seed |", "|---|---|---|"]
    for measure, strength in STRENGTHS.items():
        found = {
            dtype: [_learn(measure, strength, dtype, seed, steps) for seed in range(seeds)]
            for dtype in (None, torch.bfloat16)
        }
        pairs = zip(found[None], found[torch.bfloat16], strict=True)
        lowest = min(float(torch.corrcoef(torch.stack([whole[1], rounded[1]]))[0, 1]) for whole, rounded in pairs)
        report.ratios.append(
            Ratio(f"{measure}: correlation of Ω with single precision's", lowest, 0.999, at_least=True)
        )
        means = [statistics.mean(accuracy for accuracy, _ in runs) for runs in found.values()]
        report.ratios.append(
            Ratio(f"{measure}: accuracy lost, {means[0]:.2f} in 32 bits", means[0] - means[1], 0.5, unit=" points")
        )
        for dtype, runs in found.items():
            accuracies = ", ".join(f"{accuracy:.2f}" for accuracy, _ in runs)
            lines.append(f"| {measure} | {'32' if dtype is None else '16'} bits | {accuracies} |")
    report.details["Every run"] = lines
    yield report


def _learn(
    measure: str, strength: float, dtype: torch.dtype | None, seed: int, steps: int
) -> tuple[float, torch.Tensor]:
    torch.manual_seed(seed)
    tasks = permuted(digits_dataset(), tasks=3, seed=seed).tasks
    model = nn.Sequential(nn.Linear(64, 300), nn.ReLU(), nn.Linear(300, 300), nn.ReLU(), nn.Linear(300, 10))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.001)
    guard = holdfast.Consolidator(model, measure, strength, state_dtype=dtype)
    guard.attach(optimizer)
    for task in tasks:
        x, y = task.train.x, task.train.y
        for _ in range(steps):
            batch = torch.randint(len(x), (BATCH,))
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(x[batch]), y[batch]).backward()
            optimizer.step()
        guard.consolidate([(x, y)])
    with torch.no_grad():
        hits = [(model(task.test.x).argmax(1) == task.test.y).float().mean() for task in tasks]
    omega = torch.cat([value.double().flatten() for value in guard.importance.values()])
    return 100 * float(torch.stack(hits).mean()), omega
