"""Why averages of a task's last steps, and the Fisher, keep less than they should: units that are dead at its end.

Three permutations of MNIST, a network of 300-300 units with ReLU, batches of 2048, Adam at the paper's rate for them or
an eighth of it; brute force, in which neither a guard nor an engine has a part. After a task, the weights of a unit
that no image of it makes active have importance 0 where the average does not reach back to its first steps: they are
free at any strength, and when they move, the unit may be active on the old task's images. What that costs is seen by
switching those units off again, by holding them alone, and by damping, a share of the mean importance for every weight.

``python -m studies.dead_units [--data-dir FOLDER]`` writes results/dead-units.md; half an hour on one core.
"""

import argparse
import json
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy, linear, relu

from anchorhold_lab.data.images import Dataset, scaled
from anchorhold_lab.data.locations import load
from anchorhold_lab.networks import mlp
from benchmarks.harness import surroundings

Average = Literal["β₂ = 0.999", "β₂ = 0.97", "tied", "skip", "√Fisher"]
Weights = list[Tensor]
Dead = tuple[Tensor, Tensor]

BATCH, EPOCHS, TASKS, SEED = 2048, 20, 3, 0
WINDOW, SKIP, FISHER_SAMPLES = 0.1, 50, 5000
RATES = (0.008, 0.001)
AVERAGES: tuple[Average, ...] = ("β₂ = 0.999", "β₂ = 0.97", "tied", "skip")
NAMES = {"tied": "the last 10 % of the task", "skip": "β₂ = 0.999, first 50 steps left out"}


@dataclass(frozen=True)
class Case:
    """One way to hold."""

    average: Average
    strength: float
    damping: float = 0.0
    damped: Literal["all", "dead", "others"] = "all"
    """Which weights are: all, those of units that are dead at the task's end, or those of the others."""
    redrawn: bool = True
    """Whether weights are drawn anew before each task."""
    rates: tuple[float, ...] = RATES[:1]

    @property
    def said(self) -> str:
        """The case in words."""
        of = {"all": "", "dead": " on weights of dead units alone", "others": " on all other weights"}
        how = f", damping {self.damping:g}{of[self.damped]}" if self.damping else ""
        return NAMES.get(self.average, self.average) + how + ("" if self.redrawn else ", no re-initialisation")


CASES = [
    Case("β₂ = 0.999", 5),
    Case("β₂ = 0.97", 100, rates=RATES),
    Case("β₂ = 0.97", 100, damping=0.01),
    Case("tied", 100, rates=RATES),
    Case("tied", 100, damping=0.001),
    Case("tied", 100, damping=0.01, rates=RATES),
    Case("tied", 100, damping=0.001, damped="dead"),
    Case("tied", 100, damping=0.001, damped="others"),
    Case("tied", 100, redrawn=False),
    Case("tied", 100, damping=0.01, redrawn=False),
    Case("skip", 20),
    Case("skip", 20, damping=0.01),
    Case("√Fisher", 100),
    Case("√Fisher", 100, damping=0.01),
]


class Images:
    """The images of all tasks, each with an order of pixels of its own."""

    def __init__(self, data: Dataset) -> None:
        self.train, self.labels = scaled(data.train.pixels).flatten(1), data.train.labels.long()
        self.test, self.test_labels = scaled(data.test.pixels).flatten(1), data.test.labels.long()
        generator = torch.Generator().manual_seed(100 + SEED)
        self.orders = [torch.randperm(self.train.shape[1], generator=generator) for _ in range(TASKS)]

    def of(self, task: int) -> Tensor:
        """Return a task's training images."""
        return self.train[:, self.orders[task]].contiguous()

    def batches(self, task: int) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield a task's batches, epoch after epoch."""
        images, generator = self.of(task), torch.Generator().manual_seed(1000 * task + SEED)
        for _ in range(EPOCHS):
            order = torch.randperm(len(images), generator=generator)
            for rows in order[: len(order) // BATCH * BATCH].split(BATCH):
                yield images[rows], self.labels[rows]

    @torch.no_grad()
    def accuracy(self, weights: Weights, task: int, off: Dead | None = None) -> float:
        """Return the accuracy on a task's test images in per cent, with some units switched off."""
        found = forward(weights, self.test[:, self.orders[task]], off)[2].argmax(1)
        return 100 * (found == self.test_labels).double().mean().item()


def drawn(hidden: int, task: int) -> Weights:
    """Return weights and biases, layer by layer, to begin a task with."""
    torch.manual_seed(SEED + 10 * task)
    return [p.detach().clone() for p in mlp(784, (hidden, hidden), 10).parameters()]


def forward(weights: Weights, x: Tensor, off: Dead | None = None) -> tuple[Tensor, Tensor, Tensor]:
    """Return what both hidden layers and the last one give."""
    first = relu(linear(x, weights[0], weights[1]))
    first = first if off is None else first * ~off[0]
    second = relu(linear(first, weights[2], weights[3]))
    second = second if off is None else second * ~off[1]
    return first, second, linear(second, weights[4], weights[5])


@torch.no_grad()
def dead_units(weights: Weights, x: Tensor) -> Dead:
    """Return which units of each hidden layer no sample makes active."""
    first, second, _ = forward(weights, x)
    return ~(first > 0).any(0), ~(second > 0).any(0)


def weights_of(units: Dead, weights: Weights) -> list[Tensor]:
    """Return of each weight whether it leads into or out of one of these units."""
    first, second = units
    pairs = [first[:, None], first, second[:, None] | first, second, second[None, :], torch.tensor(False)]
    return [mask.expand(w.shape) for mask, w in zip(pairs, weights, strict=True)]


def rate_of(average: Average, step: int) -> float:
    """Return what a step's squared gradient counts for as it joins an average."""
    if average == "tied":
        return 1 / (1 + WINDOW * step)
    if average == "skip" and step < SKIP:
        return 0.0
    return 0.03 if average == "β₂ = 0.97" else 0.001


@dataclass
class Held:
    """What weights are held to, and how strongly each."""

    anchor: Weights
    omega: Weights
    strength: float


def learn(
    images: Images, task: int, weights: Weights, rate: float, averages: Sequence[Average], held: Held | None
) -> dict[Average, Weights]:
    """Learn a task in place with Adam, and return the averages of its squared gradients, none of them normalised."""
    first, second = ([torch.zeros_like(w) for w in weights] for _ in range(2))
    found = {average: [torch.zeros_like(w) for w in weights] for average in averages}
    for step, (x, y) in enumerate(images.batches(task)):
        leaves = [w.detach().requires_grad_() for w in weights]
        gradients = torch.autograd.grad(cross_entropy(forward(leaves, x)[2], y), leaves)
        for average, v in found.items():
            for mean, g in zip(v, gradients, strict=True):
                mean.lerp_(g * g, rate_of(average, step))
        for i, (w, g) in enumerate(zip(weights, gradients, strict=True)):
            pulled = g if held is None else g + 2 * held.strength * held.omega[i] * (w - held.anchor[i])
            first[i].lerp_(pulled, 0.1)
            second[i].mul_(0.999).addcmul_(pulled, pulled, value=0.001)
            root = (second[i] / (1 - 0.999 ** (step + 1))).sqrt() + 1e-8
            w.sub_(rate * (first[i] / (1 - 0.9 ** (step + 1))) / root)
    return found


def root_fisher(weights: Weights, images: Tensor) -> Weights:
    """Return √F, with the exact expectation over labels: a layer's squared gradients are δ²ᵀa², sample by sample."""
    sums = [torch.zeros_like(w) for w in weights]
    z1 = linear(images, weights[0], weights[1]).requires_grad_()
    z2 = linear(relu(z1), weights[2], weights[3])
    z3 = linear(relu(z2), weights[4], weights[5])
    logs = z3.log_softmax(1)
    inputs = [images, relu(z1).detach(), relu(z2).detach()]
    for label in range(logs.shape[1]):
        deltas = torch.autograd.grad(logs[:, label].sum(), [z1, z2, z3], retain_graph=True)
        for layer, (delta, a) in enumerate(zip(deltas, inputs, strict=True)):
            weighted = logs[:, label, None].detach().exp() * delta.square()
            sums[2 * layer] += weighted.T @ a.square()
            sums[2 * layer + 1] += weighted.sum(0)
    return [(total / len(images)).sqrt() for total in sums]


def mean_of(omega: Weights) -> Tensor:
    """Return the mean over all weights."""
    return sum((w.sum() for w in omega), torch.zeros(())) / sum(w.numel() for w in omega)


def damped(omega: Weights, case: Case, units: Dead) -> Weights:
    """Return importances with the share of their mean that a case adds."""
    added, masks = case.damping * mean_of(omega), weights_of(units, omega)
    ways: dict[str, Callable[[Tensor], Tensor | float]]
    ways = {"all": lambda _: 1.0, "dead": lambda mask: mask, "others": lambda mask: ~mask}
    chosen = ways[case.damped]
    return [w + added * chosen(mask) for w, mask in zip(omega, masks, strict=True)] if case.damping else omega


@dataclass
class FirstTask:
    """What all cases of one rate share: nothing is held yet."""

    weights: Weights
    averages: dict[Average, Weights]
    units: Dead
    scale: float
    """By which √F has the mean of the tied average, so that one strength serves both."""


def first_task(images: Images, hidden: int, rate: float) -> tuple[FirstTask, dict[str, Any]]:
    """Learn the first task, and return it with what is seen of importances and of dead units."""
    weights = drawn(hidden, 0)
    averages = learn(images, 0, weights, rate, AVERAGES, None)
    x = images.of(0)
    units, fisher = dead_units(weights, x), root_fisher(weights, x[:FISHER_SAMPLES])
    roots: dict[str, Weights] = {average: [v.sqrt() for v in found] for average, found in averages.items()}
    scale = float(mean_of(roots["tied"]) / mean_of(fisher))
    lit = (x > 0).any(0)
    seen = {
        "rate": rate,
        "accuracy": images.accuracy(weights, 0),
        "dead": [layer.double().mean().item() for layer in units],
        "dead at first": [layer.double().mean().item() for layer in dead_units(drawn(hidden, 0), x)],
        "below 1e-6 of the mean": {name: share_below(w, lit) for name, w in {**roots, "√Fisher": fisher}.items()},
        "correlation with √Fisher": {name: correlation(w, fisher) for name, w in roots.items()},
    }
    return FirstTask(weights, averages, units, scale), seen


def share_below(omega: Weights, lit: Tensor, share: float = 1e-6) -> float:
    """Return how many weights have less than a share of the mean, those of pixels that are always black left out."""
    values = torch.cat([omega[0][:, lit].flatten(), *(w.flatten() for w in omega[1:])])
    return (values < share * values.mean()).double().mean().item()


def correlation(a: Weights, b: Weights) -> float:
    """Return Pearson's correlation over all weights."""
    joined = torch.stack([torch.cat([w.flatten() for w in each]) for each in (a, b)])
    return torch.corrcoef(joined)[0, 1].item()


def run(images: Images, hidden: int, rate: float, case: Case, first: FirstTask) -> dict[str, Any]:
    """Learn the other tasks, and return accuracies: as they are, and with each task's dead units switched off again."""
    weights, found, units = [w.clone() for w in first.weights], first.averages, [first.units]
    omega = [torch.zeros_like(w) for w in weights]
    for task in range(TASKS):
        if task:
            held = Held([w.clone() for w in weights], omega, case.strength)
            weights = drawn(hidden, task) if case.redrawn else weights
            watched = () if case.average == "√Fisher" else (case.average,)
            found = learn(images, task, weights, rate, watched, held)
            units.append(dead_units(weights, images.of(task)))
        own = own_importance(images, case, first, weights, found, task)
        omega = [total + w for total, w in zip(omega, damped(own, case, units[task]), strict=True)]
    return {
        "rate": rate,
        "accuracies": [images.accuracy(weights, task) for task in range(TASKS)],
        "its dead units off": [images.accuracy(weights, task, units[task]) for task in range(TASKS)],
    }


def own_importance(
    images: Images, case: Case, first: FirstTask, weights: Weights, found: dict[Average, Weights], task: int
) -> Weights:
    """Return a task's importances: √v, or √F at the scale of the tied average."""
    if case.average == "√Fisher":
        return [first.scale * w for w in root_fisher(weights, images.of(task)[:FISHER_SAMPLES])]
    return [v.sqrt() for v in found[case.average]]


def page(first: list[dict[str, Any]], rows: list[dict[str, Any]], where: dict[str, str]) -> str:
    """Return what is written."""
    setting = (
        f"{TASKS} permutations of MNIST, 300-300 units with ReLU, batches of {BATCH}, {EPOCHS} epochs of Adam, one "
        "seed; plain torch, no guard. √v without α and not normalised; c as it was found for 2000-2000 units, and for "
        "√Fisher that of the tied window, at its scale. Damping adds a share of the mean importance to each. "
        "No c was searched for here: a row with damping is to be compared with its own without, at that c. Both "
        "dampings were seen on these test images."
    )
    zeros = (
        "After the first task: units that no training image makes active (none before training), and weights whose "
        "importance is below a millionth of the mean (those of pixels that are always black left out)."
    )
    kept = "Accuracy in per cent after three tasks; that of the first also with its dead units switched off again."
    given = [f"- {key}: {value}" for key, value in where.items()]
    return "\n\n".join(
        [
            "# Units that are dead at a task's end",
            "\n".join(given),
            *(setting, zeros, "\n".join(table_of_zeros(first)), kept, "\n".join(table_of_accuracies(rows)) + "\n"),
        ]
    )


def table_of_zeros(first: list[dict[str, Any]]) -> list[str]:
    """Return a line for each rate."""
    names = [*AVERAGES, "√Fisher"]
    lines = ["| rate | dead, first and second layer | " + " | ".join(NAMES.get(name, name) for name in names) + " |"]
    lines += ["|" + "---|" * (2 + len(names))]
    for seen in first:
        dead = " and ".join(f"{100 * share:.0f} %" for share in seen["dead"])
        below = [f"{100 * seen['below 1e-6 of the mean'][name]:.0f} %" for name in names]
        lines.append(f"| {seen['rate']:g} | {dead} | " + " | ".join(below) + " |")
    return lines


def table_of_accuracies(rows: list[dict[str, Any]]) -> list[str]:
    """Return a line for each case."""
    lines = ["| rate | importance | c | average | first task | with its dead units off | second | third |"]
    lines += ["|---|---|---|---|---|---|---|---|"]
    for row in rows:
        now = row["accuracies"]
        numbers = [now[0], row["its dead units off"][0], *now[1:]]
        shown = " | ".join(f"{number:.2f}" for number in numbers)
        lines.append(
            f"| {row['rate']:g} | {row['said']} | {row['strength']:g} | **{math.fsum(now) / TASKS:.2f}** | {shown} |"
        )
    return lines


def main() -> None:
    """Run all cases, and write what was seen."""
    parser = argparse.ArgumentParser(prog="python -m studies.dead_units", description=__doc__)
    parser.add_argument("--results", type=Path, default=Path("results"), help="where to write (default: %(default)s)")
    parser.add_argument("--data-dir", type=Path, help="the folder of data sets (default: as anchorhold finds it)")
    parser.add_argument("--hidden", type=int, default=300, help="units of each hidden layer (default: %(default)s)")
    options = parser.parse_args()
    torch.set_num_threads(1)
    images, seen, rows = Images(load("MNIST", options.data_dir)), [], []
    for rate in RATES:
        first, shown = first_task(images, options.hidden, rate)
        seen.append(shown)
        for case in CASES:
            if rate in case.rates:
                found = run(images, options.hidden, rate, case, first)
                rows.append({**asdict(case), "said": case.said, **found})
                print(json.dumps(rows[-1], ensure_ascii=False), flush=True)
    where = {**surroundings("dead-units"), "command": "python -m studies.dead_units"}
    (options.results / "dead-units.md").write_text(page(seen, rows, where), encoding="utf-8")
    document = {**where, "first task": seen, "rows": rows}
    (options.results / "dead-units.json").write_text(json.dumps(document, indent=1, ensure_ascii=False) + "\n", "utf-8")
