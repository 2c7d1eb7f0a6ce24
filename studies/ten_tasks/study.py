"""How strong for ten tasks, one after another: a rotated guard at relative strengths of five powers of ten.

Permutations of digits through one head, and ten classes of CIFAR-100 at a time, each ten with a head of their own,
through a small network of convolutions with and without batch norms (frozen after the first task).
``python -m studies.ten_tasks DATA`` writes results/ten-tasks.md and .json, as far as it has come.
"""

import argparse
import warnings
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import anchorhold
from anchorhold.digits import load_digits
from anchorhold_lab.data import load
from anchorhold_lab.data.images import scaled
from anchorhold_lab.training.relative_guard import RelativeGuard
from benchmarks.harness import write_rows

COMMAND = "python -m studies.ten_tasks DATA"
TASKS, STEPS, BATCH = 10, 300, 32
STRENGTHS = (0.0, 0.003, 0.03, 0.3, 3.0, 30.0)
NETWORKS = {"digits": 2, "convolutions": 1, "convolutions and batch norms": 1}
"""What is trained, and with how many seeds."""


class Task(NamedTuple):
    """Samples of one task."""

    train: tuple[Tensor, Tensor]
    test: tuple[Tensor, Tensor]
    head: int


class Heads(nn.Module):
    """A body, and a head for each task."""

    def __init__(self, body: nn.Module, width: int, heads: int) -> None:
        super().__init__()
        self.body = body
        self.heads = nn.ModuleList(nn.Linear(width, 10) for _ in range(heads))

    def forward(self, x: Tensor, head: int) -> Tensor:
        """Return the logits of one head."""
        found: Tensor = self.heads[head](self.body(x))
        return found


def network(name: str) -> Heads:
    """Return a network that has learned nothing."""
    if name == "digits":
        return Heads(nn.Sequential(nn.Linear(64, 100), nn.ReLU(), nn.Linear(100, 100), nn.ReLU()), 100, 1)
    layers: list[nn.Module] = []
    for inputs, outputs in ((3, 16), (16, 32)):
        layers.append(nn.Conv2d(inputs, outputs, 3, padding=1))
        layers += [nn.BatchNorm2d(outputs)] if "norms" in name else []
        layers += [nn.ReLU(), nn.MaxPool2d(2)]
    return Heads(nn.Sequential(*layers, nn.Flatten(), nn.Linear(512, 64), nn.ReLU()), 64, TASKS)


def tasks(name: str, seed: int, data: Path) -> Iterator[Task]:
    """Yield ten tasks."""
    generator = torch.Generator().manual_seed(seed)
    if name == "digits":
        images, labels = load_digits()
        drawn = torch.randperm(len(images), generator=generator)
        x, y = images.flatten(1)[drawn], labels[drawn]
        for _ in range(TASKS):
            order = torch.randperm(64, generator=generator)
            yield Task((x[:1000, order], y[:1000]), (x[1300:, order], y[1300:]), 0)
        return
    cifar = load("CIFAR-100", data)
    classes = torch.randperm(100, generator=generator)
    for task in range(TASKS):
        own = classes[10 * task : 10 * task + 10]
        yield Task(_of(cifar.train, own, 100), _of(cifar.test, own, 50), task)


def _of(images: Any, classes: Tensor, each: int) -> tuple[Tensor, Tensor]:
    """Return so many images of each of some classes, at half their size."""
    places = torch.cat([(images.labels == c).nonzero().flatten()[:each] for c in classes])
    labels = torch.arange(len(classes)).repeat_interleave(each)
    return F.avg_pool2d(scaled(images.pixels[places]), 2), labels


def run(name: str, strength: float, seed: int, data: Path) -> dict[str, float]:
    """Learn ten tasks at one strength; return what was learned of each, and what is left at the end."""
    torch.manual_seed(seed)
    model, every = network(name), list(tasks(name, seed, data))
    form = anchorhold.Rotated(damping=0.001)
    make: Callable[..., anchorhold.Guard] = partial(anchorhold.Guard, strength=0.0)
    if strength:
        make = partial(RelativeGuard, relative_strength=strength)
    guard = make(
        model, anchorhold.Fisher(200), protect="body.*" if "digits" not in name else None, form=form, from_scratch=True,
        batch_norm="freeze" if "norms" in name else None,
    )  # fmt: skip
    optimizer = torch.optim.Adam(model.parameters(), 1e-3)
    guard.attach(optimizer)
    learned = []
    for task in every:
        model.train()
        x, y = task.train
        for _ in range(STEPS):
            chosen = torch.randint(len(x), (BATCH,))
            optimizer.zero_grad()
            F.cross_entropy(model(x[chosen], task.head), y[chosen]).backward()
            optimizer.step()
        learned.append(accuracy(model, task))
        if strength:
            guard.consolidate([(x, y)], forward=partial(_with_head, head=task.head))
    left = [accuracy(model, task) for task in every]
    return {"learned": sum(learned) / TASKS, "average": sum(left) / TASKS}


def _with_head(model: nn.Module, inputs: Tensor, *, head: int) -> Tensor:
    outputs: Tensor = model(inputs, head)
    return outputs


@torch.no_grad()
def accuracy(model: nn.Module, task: Task) -> float:
    """Return the test accuracy."""
    model.eval()
    x, y = task.test
    return float((model(x, task.head).argmax(-1) == y).float().mean())


def page(found: list[dict[str, Any]], where: dict[str, str]) -> str:
    """Return the page."""
    lines = ["# How strong for ten tasks", "", *(f"- {key}: {value}" for key, value in where.items()), ""]
    lines.append(
        "The average test accuracy over all ten tasks at the end in per cent, and that of each when it had just been "
        f"learned, by relative strength; `Rotated(damping=0.001)`, `Fisher(200)`, Adam at 0.001, {STEPS} steps of "
        f"{BATCH} a task; seeds: {', '.join(f'{count} of {name}' for name, count in NETWORKS.items())}."
    )
    lines += ["", f"| network | {' | '.join(f'{s:g}' for s in STRENGTHS)} |", f"|---{'|---' * len(STRENGTHS)}|"]
    for name in dict.fromkeys(row["network"] for row in found):
        cells = []
        for strength in STRENGTHS:
            own = [row for row in found if (row["network"], row["strength"]) == (name, strength)]
            means = [100 * sum(row[key] for row in own) / len(own) if own else 0.0 for key in ("average", "learned")]
            cells.append(f"{means[0]:.1f} ({means[1]:.1f})" if own else "–")
        lines.append(f"| {name} | {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def main(arguments: list[str] | None = None) -> None:
    """Run all of it, and write the page after each network."""
    parser = argparse.ArgumentParser(prog="python -m studies.ten_tasks", description=__doc__)
    parser.add_argument("data", type=Path, help="a folder with CIFAR-100")
    parser.add_argument("--results", type=Path, default=Path("results"), help="where to write (default: %(default)s)")
    options = parser.parse_args(arguments)
    warnings.simplefilter("ignore")
    found: list[dict[str, Any]] = []
    for name, seeds in NETWORKS.items():
        for strength in STRENGTHS:
            for seed in range(seeds):
                row = run(name, strength, seed, options.data)
                found.append({"network": name, "strength": strength, "seed": seed, **row})
                print(found[-1], flush=True)
        write_rows(options.results, "ten-tasks", COMMAND, found, page)
