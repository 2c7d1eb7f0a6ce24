r"""Why is an exchange rate of 1 too weak for a classifier, and does anything give it a unit?

An exchange rate κ makes the hold κ/2·⟨D, Q(D)⟩, which is κ times KL(old‖new) of a sample to second order where Q is the
Fisher information. Permuted MNIST, three tasks one after another, one head, in two settings of as many steps: a
network that has seen many images a few times, and one that has seen few of them often and is certain of all. For each
way to measure Q, over a grid of κ: the accuracy and the loss of all tasks after the
last, and beside them, after the second task, the KL of unseen images of the first against what the hold took it for.
The ways:

- the Fisher information of training images, and of as many unseen ones, as a diagonal and in rotated coordinates;
- that of softened predictions, logits/τ, times τ² as in distillation (Hinton et al. 2015, arXiv 1503.02531), for τ of 2
  and 4, and for the τ at which unseen images have the least loss (Guo et al. 2017, arXiv 1706.04599);
- the empirical Fisher information, with the data's own labels, of training and of unseen images;
- a damping of a tenth in rotated coordinates.

``python -m studies.exchange_rate_classifiers --data-dir DATA`` writes results/exchange-rate-classifiers.md.
"""

import argparse
import itertools
import json
import statistics
import time
import warnings
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import anchorhold
from anchorhold_lab.data.mnist import read_mnist

TASKS, HIDDEN, UNSEEN, TEST = 3, 100, 2_000, 2_000
BATCH, RATE = 64, 0.001
SEEDS = (1,)
GRID = (1.0, 10.0, 30.0, 100.0, 300.0, 1000.0)
MEASURED = 1_000
"""Images that importance is measured from."""
NAME = "exchange-rate-classifiers"


@dataclass(frozen=True)
class Setting:
    """How a task is trained."""

    name: str
    images: int
    epochs: int


SETTINGS = [Setting("many images, a few times", 10_000, 4), Setting("few images, often", 1_000, 40)]


@dataclass(frozen=True)
class Way:
    """How Q is measured."""

    name: str
    labels: str = "exact"
    images: str = "training"
    temperature: float | None = 1.0
    """τ; ``None`` for the one at which unseen images have the least loss."""
    form: str = "diagonal"
    damping: float = 0.0


WAYS = [
    Way("Fisher, training images"),
    Way("Fisher, unseen images", images="unseen"),
    Way("Fisher at τ = 2, training images", temperature=2.0),
    Way("Fisher at τ = 4, training images", temperature=4.0),
    Way("Fisher at the fitted τ, training images", temperature=None),
    Way("empirical Fisher, training images", labels="true"),
    Way("empirical Fisher, unseen images", labels="true", images="unseen"),
    Way("Fisher, training images, rotated", form="rotated"),
    Way("Fisher, unseen images, rotated", images="unseen", form="rotated"),
    Way("Fisher, training images, rotated, damping 0.1", form="rotated", damping=0.1),
]


@dataclass(frozen=True)
class Task:
    """The images of one permutation."""

    train: tuple[Tensor, Tensor]
    unseen: tuple[Tensor, Tensor]
    test: tuple[Tensor, Tensor]


def tasks_of(folder: Path, setting: Setting, seed: int) -> list[Task]:
    """Return the tasks of a seed: the same images, their pixels permuted anew for each task but the first."""
    data, generator = read_mnist(folder), torch.Generator().manual_seed(seed)

    def drawn(images: Any, *sizes: int) -> list[tuple[Tensor, Tensor]]:
        order = torch.randperm(len(images.labels), generator=generator)
        chosen = order[: sum(sizes)].split(sizes)
        pixels, labels = images.pixels, images.labels
        return [(pixels[some].flatten(1).float() / 255, labels[some].long()) for some in chosen]

    sets = [*drawn(data.train, setting.images, UNSEEN), *drawn(data.test, TEST)]
    found = []
    for number in range(TASKS):
        order = torch.randperm(784, generator=generator) if number else torch.arange(784)
        found.append(Task(*((x[:, order], y) for x, y in sets)))
    return found


def network(seed: int) -> nn.Sequential:
    """Return a network of two hidden layers."""
    torch.manual_seed(seed)
    sizes = (nn.Linear(784, HIDDEN), nn.ReLU(), nn.Linear(HIDDEN, HIDDEN), nn.ReLU(), nn.Linear(HIDDEN, 10))
    return nn.Sequential(*sizes)


def learn(model: nn.Module, task: Task, epochs: int, guard: anchorhold.Guard, generator: torch.Generator) -> None:
    """Learn a task with Adam, held by a guard."""
    optimizer = torch.optim.Adam(model.parameters(), lr=RATE)
    guard.attach(optimizer)
    x, y = task.train
    for _ in range(epochs):
        for chosen in torch.randperm(len(x), generator=generator).split(BATCH):
            optimizer.zero_grad()
            F.cross_entropy(model(x[chosen]), y[chosen]).backward()
            optimizer.step()
    guard.detach()


@torch.no_grad()
def fitted_temperature(model: nn.Module, images: tuple[Tensor, Tensor]) -> float:
    """Return the τ of a fine grid at which images have the least loss."""
    logits, grid = model(images[0]), torch.linspace(0.5, 5, 181)
    losses = [float(F.cross_entropy(logits / t, images[1])) for t in grid]
    return float(grid[losses.index(min(losses))])


def softened(model: nn.Module, x: Tensor, temperature: float) -> Tensor:
    """Return logits/τ."""
    found: Tensor = model(x) / temperature
    return found


def consolidate(guard: anchorhold.Guard, way: Way, rate: float, task: Task) -> float:
    """Measure a task in a way, hold by its exchange rate, and return τ.

    The first importance counts with its own τ², and later ones with that of the first, which is near theirs.
    """
    x, y = task.train if way.images == "training" else task.unseen
    model = guard.model
    temperature = fitted_temperature(model, task.unseen) if way.temperature is None else way.temperature
    batches = [(x[:MEASURED], y[:MEASURED])]
    guard.consolidate(batches, forward=partial(softened, temperature=temperature))
    if guard.tasks == 1:
        guard.exchange_rate = rate * temperature**2
    return temperature


@torch.no_grad()
def tested(model: nn.Module, tasks: list[Task]) -> tuple[float, float]:
    """Return accuracy and loss on the test images of tasks, the mean over them."""
    logits = [(model(task.test[0]), task.test[1]) for task in tasks]
    right = [float((z.argmax(1) == y).double().mean()) for z, y in logits]
    losses = [float(F.cross_entropy(z, y)) for z, y in logits]
    return statistics.mean(right), statistics.mean(losses)


@torch.no_grad()
def divergence(before: Tensor, model: nn.Module, x: Tensor) -> float:
    """Return KL(old‖new) of images, in nats, from the old logits."""
    old, new = F.log_softmax(before, 1), F.log_softmax(model(x), 1)
    return float((old.exp() * (old - new)).sum(1).mean())


def guard_of(model: nn.Module, way: Way) -> anchorhold.Guard:
    """Return a guard that measures in a way."""
    measure = anchorhold.Fisher(labels=way.labels)  # type: ignore[arg-type]
    form = anchorhold.forms.Rotated(damping=way.damping) if way.form == "rotated" else way.form
    return anchorhold.Guard(model, measure, exchange_rate=1.0, form=form, from_scratch=True)


def run(setting: Setting, way: Way, rate: float, tasks: list[Task], seed: int) -> dict[str, Any]:
    """Learn all tasks one after another, and return what came of it."""
    model, generator = network(seed), torch.Generator().manual_seed(seed)
    guard = guard_of(model, way)
    found: dict[str, Any] = {"setting": setting.name, "way": way.name, "rate": rate, "seed": seed}
    for number, task in enumerate(tasks):
        learn(model, task, setting.epochs, guard, generator)
        if number == 0:
            unseen, (x, y) = task.unseen[0], task.train
            before = model(unseen).detach()
            found["certain"] = float((model(x).softmax(1).max(1).values > 0.99).double().mean())
            found["right"] = float((model(x).argmax(1) == y).double().mean())
        if number == 1:
            found["kl"] = divergence(before, model, unseen)
            found["held for"] = guard.penalty().item() / rate
            found["new"] = tested(model, tasks[1:2])[0]
        if number < TASKS - 1:
            tau = consolidate(guard, way, rate, task)
            if number == 0:
                found |= {"temperature": tau, "trace": guard.held.record()["trace"], "strength": guard.strength}
    found["accuracy"], found["loss"] = tested(model, tasks)
    return found


def page(kept: dict[str, Any]) -> str:
    """Return what was found as a page."""
    seeds = len({row["seed"] for row in kept["rows"]})
    about = (
        f"`python -m studies.exchange_rate_classifiers`, torch {kept['torch']}, {kept['seconds'] / 60:.0f} minutes of "
        f"one core. Permuted MNIST, {TASKS} tasks, Adam {RATE:g} in batches of {BATCH}, 784-{HIDDEN}-{HIDDEN}-10 with "
        f"ReLU, one head; {'means over ' + str(seeds) + ' seeds' if seeds > 1 else 'one seed'}. Q is measured from "
        f"{MEASURED:,} images. *Held for* is ½⟨D, Q(D)⟩ after the second task, which a unit would make equal to *KL*, "
        "in nats of unseen images of the first. *New* is the accuracy of the second task then, at κ = 1."
    )
    lines = ["# What gives a classifier's strength a unit?", "", about]
    for setting in SETTINGS:
        rows = [row for row in kept["rows"] if row["setting"] == setting.name]
        certain, right = (statistics.mean(row[key] for row in rows) for key in ("certain", "right"))
        rates = " | ".join(f"κ = {rate:g}" for rate in GRID)
        lines += [
            "",
            f"## {setting.name.capitalize()}: {setting.images:,} in {setting.epochs} epochs",
            "",
            f"After the first task {right:.1%} of its images are right, and {certain:.1%} have a class of over 0.99.",
            "",
            f"| Q | tr Q | τ | {rates} | best κ by loss | loss there | at κ = 1 | KL at κ = 1 | held for | new |",
            "|---" * (len(GRID) + 9) + "|",
        ]
        tried = [way for way in WAYS if any(row["way"] == way.name for row in rows)]
        lines += [_row(way, [row for row in rows if row["way"] == way.name]) for way in tried]
    return "\n".join(lines)


def _row(way: Way, rows: list[dict[str, Any]]) -> str:
    """Return a way's row: its accuracies over the grid, the best in bold, and its losses and KLs."""
    tried = [rate for rate in GRID if any(row["rate"] == rate for row in rows)]

    def at(rate: float, key: str) -> float:
        mean: float = statistics.mean(row[key] for row in rows if row["rate"] == rate)
        return mean

    best, by_loss = max(tried, key=lambda rate: at(rate, "accuracy")), min(tried, key=lambda rate: at(rate, "loss"))
    marks = {rate: "**" if rate == best else "" for rate in GRID}
    cells = [f"{marks[rate]}{at(rate, 'accuracy'):.1%}{marks[rate]}" if rate in tried else "" for rate in GRID]
    return (
        f"| {way.name} | {at(1.0, 'trace'):.3g} | {at(1.0, 'temperature'):.2f} | {' | '.join(cells)} | {by_loss:g} "
        f"| {at(by_loss, 'loss'):.3f} | {at(1.0, 'loss'):.3f} | {at(1.0, 'kl'):.3g} | {at(1.0, 'held for'):.3g} "
        f"| {at(1.0, 'new'):.1%} |"
    )


def main(arguments: list[str] | None = None) -> None:
    """Run all, and write the page; ``--page`` writes it from what was kept."""
    parser = argparse.ArgumentParser(prog="python -m studies.exchange_rate_classifiers", description=__doc__)
    parser.add_argument("--data-dir", type=Path, default=Path("data"), help="the folder that holds MNIST/raw")
    parser.add_argument("--results", type=Path, default=Path("results"))
    parser.add_argument("--page", action="store_true", help="write the page alone")
    options = parser.parse_args(arguments)
    numbers = options.results / f"{NAME}.json"
    if not options.page:
        torch.set_num_threads(1)
        warnings.simplefilter("ignore", anchorhold.AnchorholdWarning)  # the same classes in every task are meant
        started, rows = time.process_time(), []
        for seed, setting in itertools.product(SEEDS, SETTINGS):
            tasks = tasks_of(options.data_dir, setting, seed)
            for way, rate in itertools.product(WAYS, GRID):
                rows.append(run(setting, way, rate, tasks, seed))
                print(json.dumps(rows[-1]), flush=True)
            kept = {"torch": torch.__version__, "seconds": time.process_time() - started, "rows": rows}
            numbers.write_text(json.dumps(kept, indent=1) + "\n", encoding="utf-8")
    text = page(json.loads(numbers.read_text(encoding="utf-8")))
    (options.results / f"{NAME}.md").write_text(text + "\n", encoding="utf-8")
