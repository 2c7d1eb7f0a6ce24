"""One head, first the digits 0 to 4, then 5 to 9: what keeps the old ones, and what does not.

`python -m studies.class_incremental` writes results/class-incremental.md: some 700 trainings of a second each, as
many at once as there are cores.
"""

import argparse
import itertools
import json
import statistics
import warnings
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import anchorhold
from anchorhold.digits import load_digits
from anchorhold_lab.analysis.repetitions import standard_error

OLD, NEW = range(5), range(5, 10)
STEPS, BATCH, RATE = 400, 64, 1e-3
SEEDS = range(5)
GRID = (0.0, *(base * 10.0**power for power in range(-1, 5) for base in (1, 3)))
KEPT = 25
"""Old samples that are kept, five a class."""


@dataclass(frozen=True)
class Way:
    """How the second task is learned."""

    name: str
    measures: tuple[str, ...] = ("EWC", "SOS")
    """Each with a strength of its own; ``fine-tune`` for none."""
    replay: bool = False
    """Whether a quarter of every batch are old samples, of the few that are kept."""
    own_classes: bool = False
    """Whether the loss compares the new classes alone."""
    task_known: bool = False
    """Whether, when it is tested, it is known which half a digit is of: a head for each task."""


WAYS = [
    Way("fine-tuning", ("fine-tune",)),
    Way("importance alone", ("EWC", "SOS", "SI", "MAS")),
    Way("the loss compares the new classes alone", own_classes=True),
    Way(f"{KEPT} old samples, a quarter of each batch", ("fine-tune",), replay=True),
    Way(f"{KEPT} old samples, and importance", replay=True),
    Way("the task is known: a head for each", ("fine-tune", "EWC", "SOS"), own_classes=True, task_known=True),
]


class Split:
    """The digits of one seed: 60 % to learn from, 20 % to choose by, 20 % to be judged by."""

    def __init__(self, seed: int) -> None:
        images, labels = load_digits()
        order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(seed))
        x, y = images[order].flatten(1), labels[order]
        a, b = int(0.6 * len(y)), int(0.8 * len(y))
        self.train, self.validation, self.test = (
            (x[part], y[part]) for part in (slice(a), slice(a, b), slice(b, None))
        )


def of(classes: range, samples: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
    """Return the samples of some classes."""
    x, y = samples
    chosen = (y >= classes.start) & (y < classes.stop)
    return x[chosen], y[chosen]


def train(
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    data: tuple[Tensor, Tensor],
    way: Way,
    old: tuple[Tensor, Tensor],
) -> None:
    """Learn a task with what a way adds to it."""
    x, y = data
    for _ in range(STEPS):
        chosen = torch.randint(len(y), (BATCH * 3 // 4 if way.replay else BATCH,))
        optimizer.zero_grad()
        if way.own_classes:
            first = int(y.min())
            loss = F.cross_entropy(model(x[chosen])[:, first : first + 5], y[chosen] - first)
        elif way.replay:
            again = torch.randint(len(old[1]), (BATCH // 4,))
            loss = F.cross_entropy(model(torch.cat([x[chosen], old[0][again]])), torch.cat([y[chosen], old[1][again]]))
        else:
            loss = F.cross_entropy(model(x[chosen]), y[chosen])
        loss.backward()
        optimizer.step()


@torch.no_grad()
def accuracies(model: nn.Module, samples: tuple[Tensor, Tensor], way: Way) -> tuple[float, float]:
    """Return the accuracy on old and on new classes, in per cent."""
    found = []
    for classes in (OLD, NEW):
        x, y = of(classes, samples)
        z = model(x)
        if way.task_known:
            z = z[:, classes.start : classes.stop]
            y = y - classes.start
        found.append(100 * float((z.argmax(1) == y).float().mean()))
    return found[0], found[1]


def run(way: Way, measure: str, strength: float, seed: int) -> dict[str, tuple[float, float]]:
    """Learn both tasks, and return accuracies on validation and test data."""
    warnings.simplefilter("ignore", anchorhold.AnchorholdWarning)  # which says what this table shows
    data = Split(seed)
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Linear(64, 200), nn.ReLU(), nn.Linear(200, 200), nn.ReLU(), nn.Linear(200, 10))
    guard = anchorhold.Guard(model, measure, strength=strength, from_scratch=True)
    first, second = of(OLD, data.train), of(NEW, data.train)
    for number, task in enumerate((first, second)):
        optimizer = torch.optim.Adam(model.parameters(), lr=RATE)
        guard.attach(optimizer)
        train(model, optimizer, task, way if number or way.task_known else Way("first"), few(first))
        if not number:
            guard.consolidate([first])
    guard.detach()
    return {name: accuracies(model, getattr(data, name), way) for name in ("validation", "test")}


def few(samples: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
    """Return the same number of samples of each class."""
    x, y = samples
    chosen = torch.cat([(y == label).nonzero().flatten()[: KEPT // 5] for label in OLD])
    return x[chosen], y[chosen]


def strengths(measure: str) -> tuple[float, ...]:
    """Return the strengths that a measure is tried with."""
    return (0.0,) if measure == "fine-tune" else GRID


def found(way: Way, measure: str, runs: dict[float, list[dict[str, tuple[float, float]]]]) -> dict[str, object]:
    """Return what a way comes to, with the strength that is best on validation data."""

    def average(c: float) -> float:
        return statistics.mean(sum(one["validation"]) / 2 for one in runs[c])

    best = max(runs, key=average)
    old, new = ([one["test"][i] for one in runs[best]] for i in (0, 1))
    both = [sum(one["test"]) / 2 for one in runs[best]]
    row: dict[str, object] = {"way": way.name, "measure": measure, "strength": best}
    row |= {"old": statistics.mean(old), "new": statistics.mean(new), "average": statistics.mean(both)}
    row["error"] = standard_error(both)
    return row


def table(rows: list[dict[str, object]]) -> str:
    """Return the rows as a page."""
    lines = [
        "# Class-incremental digits: what keeps the old classes",
        "",
        (
            f"`python -m studies.class_incremental`, torch {torch.__version__}. One head of ten outputs learns 0 to "
            f"4 and then 5 to 9: {STEPS} steps of {BATCH} with Adam, {len(SEEDS)} seeds, each strength the best on "
            f"validation data of {len(GRID)}; test accuracy in per cent, its standard error over seeds. 50 is what "
            "forgetting one half wholly comes to."
        ),
        "",
        "| how the second task is learned | measure | strength | old | new | average |",
        "|---|---|---|---|---|---|",
    ]
    for row in rows:
        measure = "" if row["measure"] == "fine-tune" else row["measure"]
        strength = f"{row['strength']:g}" if measure else ""
        lines.append(
            f"| {row['way']} | {measure} | {strength} | {row['old']:.1f} | {row['new']:.1f} | {row['average']:.1f} ± "
            f"{row['error']:.1f} |"
        )
    return "\n".join(lines) + "\n"


def main() -> None:
    """Run the study, and write its results."""
    parser = argparse.ArgumentParser(prog="python -m studies.class_incremental", description=__doc__)
    parser.add_argument("--results", type=Path, default=Path("results"), help="where to write (default: %(default)s)")
    options = parser.parse_args()
    chosen = [(way, measure) for way in WAYS for measure in way.measures]
    cases = [(way, measure, c, seed) for way, measure in chosen for c in strengths(measure) for seed in SEEDS]
    rows = []
    with ProcessPoolExecutor(initializer=torch.set_num_threads, initargs=(1,)) as pool:
        done = zip(cases, pool.map(run, *zip(*cases, strict=True)), strict=True)
        for (way, measure), group in itertools.groupby(done, key=lambda one: one[0][:2]):
            runs: dict[float, list[dict[str, tuple[float, float]]]] = {}
            for (_, _, c, _), accuracy in group:
                runs.setdefault(c, []).append(accuracy)
            rows.append(found(way, measure, runs))
            print(json.dumps(rows[-1]), flush=True)
    (options.results / "class-incremental.md").write_text(table(rows), encoding="utf-8")
    (options.results / "class-incremental.json").write_text(json.dumps(rows, indent=1) + "\n", encoding="utf-8")
