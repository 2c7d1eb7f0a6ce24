"""A classifier whose old data is gone: which inputs can stand in for it, for distillation and the Fisher information.

`python -m studies.without_data` writes results/without-data.md: two settings of MNIST, three seeds, every way with
as many strengths; some minutes on two cores.
"""

import argparse
import copy
import json
import statistics
import warnings
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import anchorhold
from anchorhold_lab.analysis.pearson import CoMoments
from anchorhold_lab.analysis.repetitions import standard_error
from anchorhold_lab.data.images import scaled
from anchorhold_lab.data.locations import Datasets
from benchmarks.harness import surroundings

SEEDS = range(3)
STEPS, BATCH, RATE = 300, 64, 3e-3
LEARNED, CHOSEN_BY, JUDGED_BY = 10_000, 2_000, 5_000
"""Images of each task to learn from, of the training set to choose a strength by, and of the test set."""
KEPT = 1_000
"""Inputs that stand in for the old data, of whatever kind."""
INVERTED_STEPS, INVERTED_RATE = 200, 0.05
WARMTH = 2.0
"""The temperature of distillation."""
DISTILLATION = (0.1, 0.3, 1.0, 3.0, 10.0, 30.0, 100.0, 300.0)
HOLDING = tuple(10.0**power for power in range(-4, 2))
"""Strengths: of distillation as they are, of the penalty after the importance was divided by its mean."""
MEAN, DEVIATION = 0.1307, 0.3081
"""Of all pixels of MNIST, which everyone knows who scales inputs by them."""

Samples = tuple[Tensor, Tensor]


@dataclass(frozen=True)
class Setting:
    """Two tasks: which outputs each has, and whether the second one's pixels are shuffled."""

    name: str
    title: str
    outputs: tuple[slice, slice]
    shuffled: bool


SETTINGS = [
    Setting("permuted", "Permuted: the second task has the same digits, their pixels shuffled", (slice(10),) * 2, True),
    Setting("split", "Split: first 0 to 4, then 5 to 9, a head for each", (slice(5), slice(5, 10)), False),
]


class Tasks:
    """The images of one seed: for each task what is learned from, chosen by and judged by."""

    def __init__(self, setting: Setting, seed: int, datasets: Datasets) -> None:
        generator = torch.Generator().manual_seed(seed)
        mnist = datasets["MNIST"]
        order = torch.randperm(len(mnist.train), generator=generator)
        shuffle = torch.randperm(784, generator=generator)
        self.parts: list[dict[str, Samples]] = []
        for number, outputs in enumerate(setting.outputs):
            labels = mnist.train.labels[order]
            mine = order[(labels >= (outputs.start or 0)) & (labels < outputs.stop)]
            train, validation = mine[:LEARNED], mine[-CHOSEN_BY:]
            of_test = mnist.test.labels
            test = ((of_test >= (outputs.start or 0)) & (of_test < outputs.stop)).nonzero().flatten()[:JUDGED_BY]
            sources = {
                "train": (mnist.train, train),
                "validation": (mnist.train, validation),
                "test": (mnist.test, test),
            }
            self.parts.append({})
            for name, (images, places) in sources.items():
                x = scaled(images.pixels[places]).flatten(1)
                x = x[:, shuffle] if setting.shuffled and number else x
                self.parts[-1][name] = x, images.labels[places] - (outputs.start or 0)


def network(seed: int) -> nn.Module:
    """Return the network, with the first weights of a seed."""
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(784, 100), nn.ReLU(), nn.Linear(100, 100), nn.ReLU(), nn.Linear(100, 10))


def train(
    model: nn.Module,
    data: Samples,
    outputs: slice,
    seed: int,
    more: Callable[[torch.Generator], Tensor] | None = None,
    guard: anchorhold.Guard | None = None,
) -> None:
    """Learn a task; ``more`` gives what is added to the loss, and a guard what is held."""
    x, y = data
    optimizer = torch.optim.Adam(model.parameters(), lr=RATE)
    if guard is not None:
        guard.attach(optimizer)
    # The same images in the same order for every way, since what else is drawn has numbers of its own.
    order, others = (torch.Generator().manual_seed(10 * seed + place) for place in (1, 2))
    for _ in range(STEPS):
        chosen = torch.randint(len(y), (BATCH,), generator=order)
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x[chosen])[:, outputs], y[chosen])
        if more is not None:
            loss = loss + more(others)
        loss.backward()
        optimizer.step()
    if guard is not None:
        guard.detach()


def distillation(
    model: nn.Module, old: nn.Module, inputs: Tensor, outputs: slice, strength: float
) -> Callable[[torch.Generator], Tensor]:
    """Return a loss: a model's outputs on some inputs stay as the old one has them (Li and Hoiem 2016, 1606.09282)."""
    with torch.no_grad():
        wanted = F.log_softmax(old(inputs)[:, outputs] / WARMTH, -1)

    def loss(generator: torch.Generator) -> Tensor:
        chosen = torch.randint(len(inputs), (BATCH,), generator=generator)
        now = F.log_softmax(model(inputs[chosen])[:, outputs] / WARMTH, -1)
        return strength * WARMTH**2 * F.kl_div(now, wanted[chosen], log_target=True, reduction="batchmean")

    return loss


def inverted(model: nn.Module, outputs: slice, generator: torch.Generator) -> Tensor:
    """Return inputs that were changed from noise until the model is sure of a class, as many of each."""
    x = torch.rand(KEPT, 784, generator=generator).requires_grad_()
    labels = torch.arange(KEPT) % (outputs.stop - (outputs.start or 0))
    optimizer = torch.optim.Adam([x], lr=INVERTED_RATE)
    for _ in range(INVERTED_STEPS):
        optimizer.zero_grad()
        F.cross_entropy(model(x)[:, outputs], labels).backward()
        optimizer.step()
        with torch.no_grad():
            x.clamp_(0, 1)
    model.zero_grad()
    return x.detach()


def stand_ins(model: nn.Module, tasks: Tasks, outputs: slice, seed: int) -> dict[str, Tensor]:
    """Return what may stand in for old inputs, by its name."""
    generator = torch.Generator().manual_seed(10 * seed + 3)
    gaussian = MEAN + DEVIATION * torch.randn(KEPT, 784, generator=generator)
    uniform = torch.rand(KEPT, 784, generator=generator)
    new = tasks.parts[1]["train"][0][:KEPT]
    made = inverted(model, outputs, generator)
    half = KEPT // 2
    return {
        "old inputs (the bound)": tasks.parts[0]["train"][0][:KEPT],
        "Gaussian noise": gaussian,
        "uniform noise": uniform,
        "the new task's inputs": new,
        "inverted from the model": made,
        "half new, half inverted": torch.cat([new[:half], made[:half]]),
    }


@torch.no_grad()
def accuracies(model: nn.Module, setting: Setting, tasks: Tasks, part: str) -> list[float]:
    """Return the accuracy on the first and the second task, in per cent."""
    found = []
    for outputs, task in zip(setting.outputs, tasks.parts, strict=True):
        x, y = task[part]
        found.append(100 * float((model(x)[:, outputs].argmax(1) == y).float().mean()))
    return found


def run(setting: Setting, seed: int, folder: Path | None) -> list[dict[str, Any]]:
    """Learn the first task, then the second one in every way from there."""
    warnings.simplefilter("ignore", anchorhold.AnchorholdWarning)
    tasks = Tasks(setting, seed, Datasets(folder))
    first, second = setting.outputs
    old = network(seed)
    train(old, tasks.parts[0]["train"], first, seed)
    found = []

    def note(way: str, inputs: str, strength: float, model: nn.Module, **more: object) -> None:
        scores = {part: accuracies(model, setting, tasks, part) for part in ("validation", "test")}
        found.append({"way": way, "inputs": inputs, "strength": strength, "seed": seed, **scores, **more})

    note("before", "", 0.0, old)
    plain = copy.deepcopy(old)
    train(plain, tasks.parts[1]["train"], second, seed)
    note("fine-tuning", "", 0.0, plain)
    both = copy.deepcopy(old)
    train_both(both, setting, tasks, seed)
    note("old data beside the new", "", 0.0, both)
    real = None
    for name, inputs in stand_ins(old, tasks, first, seed).items():
        for strength in DISTILLATION:
            model = copy.deepcopy(old)
            train(model, tasks.parts[1]["train"], second, seed, distillation(model, old, inputs, first, strength))
            note("distillation", name, strength, model)
        model = copy.deepcopy(old)
        guard = anchorhold.Guard(model, anchorhold.Fisher())
        guard.consolidate([inputs], forward=lambda model, x: model(x)[:, first])
        omega = torch.cat([own.flatten() for own in guard.importance.values()])
        real = omega if real is None else real
        together = CoMoments(2)
        together.add(torch.stack([real, omega]))
        for strength in HOLDING:
            model.load_state_dict(old.state_dict())
            guard.strength = strength / float(omega.mean())
            train(model, tasks.parts[1]["train"], second, seed, guard=guard)
            note("Fisher information", name, strength, model, correlation=float(together.correlations()[0, 1]))
    return found


def train_both(model: nn.Module, setting: Setting, tasks: Tasks, seed: int) -> None:
    """Learn the second task with all of the first one's data beside it."""
    x, y = tasks.parts[0]["train"]

    def rehearsal(generator: torch.Generator) -> Tensor:
        chosen = torch.randint(len(y), (BATCH,), generator=generator)
        return F.cross_entropy(model(x[chosen])[:, setting.outputs[0]], y[chosen])

    train(model, tasks.parts[1]["train"], setting.outputs[1], seed, rehearsal)


def rows_of(found: list[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """Yield what each way comes to, with the strength that is best on validation data on average over seeds."""
    cases: dict[tuple[object, object], dict[float, list[dict[str, Any]]]] = {}
    for one in found:
        cases.setdefault((one["way"], one["inputs"]), {}).setdefault(one["strength"], []).append(one)
    for (way, inputs), by_strength in cases.items():
        best = max(by_strength, key=lambda c: statistics.mean(sum(one["validation"]) for one in by_strength[c]))
        runs = by_strength[best]
        old, new = ([one["test"][place] for one in runs] for place in (0, 1))
        both = [sum(one["test"]) / 2 for one in runs]
        row = {"way": way, "inputs": inputs, "strength": best, "edge": best in (min(by_strength), max(by_strength))}
        row |= {"old": statistics.mean(old), "new": statistics.mean(new), "average": statistics.mean(both)}
        row["error"] = standard_error(both)
        if "correlation" in runs[0]:
            row["correlation"] = statistics.mean(one["correlation"] for one in runs)
        yield row


def table(rows: dict[str, list[dict[str, Any]]], where: dict[str, str]) -> str:
    """Return the rows as a page."""
    lines = [
        "# A classifier whose old data is gone: what can stand in for its inputs",
        "",
        *(f"- {key}: {value}" for key, value in where.items()),
        "",
        (
            f"MNIST, {LEARNED:,} images a task at most, a 784-100-100-10 network, {STEPS} steps of {BATCH} a task with "
            f"Adam, {len(SEEDS)} seeds; {KEPT:,} inputs of each kind. Distillation adds {BATCH} of them to every step "
            f"(temperature {WARMTH:g}), with one of {len(DISTILLATION)} strengths from {DISTILLATION[0]:g} to "
            f"{DISTILLATION[-1]:g}; the exact Fisher information is measured on them and divided by its mean, with one "
            f"of {len(HOLDING)} from {HOLDING[0]:g} to {HOLDING[-1]:g}: each the best on validation images. Test "
            "accuracy in per cent, of the average with its standard error over seeds. The correlation is that of the "
            "importances with those on old inputs."
        ),
    ]
    for setting in SETTINGS:
        lines += ["", f"## {setting.title}", ""]
        lines += [
            "| way | inputs | strength | task 1 | task 2 | average | correlation |",
            "|---|---|---|---|---|---|---|",
        ]
        for row in rows[setting.name]:
            strength = f"{row['strength']:g}{' (edge)' if row['edge'] else ''}" if row["inputs"] else ""
            correlation = f"{row['correlation']:.2f}" if "correlation" in row else ""
            lines.append(
                f"| {row['way']} | {row['inputs']} | {strength} | {row['old']:.1f} | {row['new']:.1f} | "
                f"{row['average']:.1f} ± {row['error']:.1f} | {correlation} |"
            )
    return "\n".join(lines) + "\n"


def main() -> None:
    """Run the study, and write its results."""
    parser = argparse.ArgumentParser(prog="python -m studies.without_data", description=__doc__)
    parser.add_argument("--results", type=Path, default=Path("results"), help="where to write (default: %(default)s)")
    parser.add_argument(
        "--data-dir", type=Path, help="where MNIST lies (default: ANCHORHOLD_DATA, or the user's cache)"
    )
    options = parser.parse_args()
    cases = [(setting, seed, options.data_dir) for setting in SETTINGS for seed in SEEDS]
    with ProcessPoolExecutor(initializer=torch.set_num_threads, initargs=(1,)) as pool:
        found = list(pool.map(run, *zip(*cases, strict=True)))
    runs: dict[str, list[dict[str, Any]]] = {setting.name: [] for setting in SETTINGS}
    for (setting, *_), own in zip(cases, found, strict=True):
        runs[setting.name] += own
    rows = {name: list(rows_of(own)) for name, own in runs.items()}
    where = surroundings("without-data") | {"command": "python -m studies.without_data"}
    options.results.mkdir(parents=True, exist_ok=True)
    (options.results / "without-data.md").write_text(table(rows, where), encoding="utf-8")
    document = {**where, "rows": rows, "runs": runs}
    (options.results / "without-data.json").write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
