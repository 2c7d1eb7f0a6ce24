"""Tiny-memory replay by its own protocol (Chaudhry et al. 2019, arXiv 1902.10486): permuted MNIST, seen once.

`python -m studies.tiny_memory --data-dir DATA` writes results/tiny-memory.md. Seventeen permutations with 1000
samples each, one epoch, batches of 10 and as many of memory, a network 784-256-256-10, SGD; rings of one, five and
fifteen samples a class and task against no memory.
"""

import argparse
import json
import os
import statistics
import warnings
from pathlib import Path
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import anchorhold
from anchorhold_lab.analysis.repetitions import standard_error
from anchorhold_lab.data import load

TASKS, SAMPLES, BATCH = 17, 1000, 10
CASES = ((0, 0.03), (0, 0.1), (1, 0.1), (5, 0.1), (15, 0.1))
"""Samples a class and task, 0 for fine-tuning, and the rate: theirs, and for fine-tuning that of replay too."""
SEEDS = range(5)


class Data(NamedTuple):
    """Images as rows, with their labels."""

    train: tuple[Tensor, Tensor]
    test: tuple[Tensor, Tensor]


class Row(NamedTuple):
    """What one way came to, in per cent, over seeds."""

    memory: int
    rate: float
    accuracy: float
    """Mean over all tasks after the last."""
    error: float
    forgetting: float
    """What tasks lost since they were learned."""
    seeds: int


def mnist(folder: str | os.PathLike[str] | None) -> Data:
    """Return MNIST with values from 0 to 1."""
    images = load("MNIST", folder)
    train, test = ((part.pixels.flatten(1).float() / 255, part.labels.long()) for part in (images.train, images.test))
    return Data(train, test)


class Outcome(NamedTuple):
    """What came out of one run: the accuracy on each task, in per cent."""

    learned: list[float]
    """When it had just been learned."""
    kept: list[float]
    """After the last."""


def run(data: Data, memory: int, rate: float, seed: int, tasks: int = TASKS, samples: int = SAMPLES) -> Outcome:
    """Learn the tasks one after another."""
    warnings.simplefilter("ignore", anchorhold.AnchorholdWarning)
    torch.manual_seed(seed)
    x, y = data.train
    network = nn.Sequential(nn.Linear(x.shape[1], 256), nn.ReLU(), nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, 10))
    replay = [anchorhold.Replay(anchorhold.holds.Ring(memory, seed=seed), share=0.5, size=BATCH)] if memory else []
    guard = anchorhold.Guard(network, "fine-tune", strength=0.0, holds=replay, from_scratch=True)
    optimizer = torch.optim.SGD(network.parameters(), lr=rate)
    guard.attach(optimizer)
    orders = [torch.randperm(x.shape[1]) for _ in range(tasks)]
    learned = []
    for order in orders:
        chosen = torch.randperm(len(y))[:samples]
        own_x, own_y = x[chosen][:, order], y[chosen]
        for batch_x, batch_y in zip(own_x.split(BATCH), own_y.split(BATCH), strict=True):
            optimizer.zero_grad()
            F.cross_entropy(network(batch_x), batch_y).backward()
            optimizer.step()
        guard.consolidate([(own_x, own_y)])
        learned.append(_accuracy(network, data.test, order))
    return Outcome(learned, [_accuracy(network, data.test, order) for order in orders])


@torch.no_grad()
def _accuracy(network: nn.Module, samples: tuple[Tensor, Tensor], order: Tensor) -> float:
    x, y = samples
    return 100 * float((network(x.index_select(1, order)).argmax(1) == y).float().mean())


def row_of(memory: int, rate: float, runs: list[Outcome]) -> Row:
    """Return what runs with other seeds came to."""
    last = [statistics.mean(each.kept) for each in runs]
    lost = [statistics.mean(each.learned) - statistics.mean(each.kept) for each in runs]
    return Row(memory, rate, statistics.mean(last), standard_error(last), statistics.mean(lost), len(last))


def table(rows: list[Row]) -> str:
    """Return the rows as a page."""
    lines = [
        "# Tiny-memory replay by its own protocol",
        "",
        (
            f"`python -m studies.tiny_memory`, torch {torch.__version__}. {TASKS} permutations of MNIST, {SAMPLES} "
            f"samples each, one epoch, batches of {BATCH} and as many of memory, 784-256-256-10 with one head, SGD, "
            f"{rows[0].seeds} seeds. Accuracy over all tasks after the last, in per cent, with its standard error over "
            "seeds; forgetting is what tasks lost since they were learned; gain is over no memory at its better rate."
        ),
        "",
        (
            "Chaudhry et al. 2019 (arXiv 1902.10486) say that one sample a class brings 7 to 17 points over "
            "fine-tuning on their benchmarks; their tables were not at hand, so no row of theirs stands here, and "
            "rates and sizes are as remembered. Two things differ from theirs: a ring takes a task's samples in when "
            "it ends, so that none of the current task are replayed, and the ten that are replayed at a step are all "
            "of one old task, drawn anew at every step."
        ),
        "",
        "| samples a class | rate | accuracy | gain | forgetting |",
        "|---|---|---|---|---|",
    ]
    without = max(row.accuracy for row in rows if not row.memory)
    for row in rows:
        gain = f"{row.accuracy - without:+.1f}" if row.memory else ""
        lines.append(
            f"| {row.memory or 'none'} | {row.rate:g} | {row.accuracy:.1f} ± {row.error:.1f} | {gain} | "
            f"{row.forgetting:.1f} |"
        )
    return "\n".join(lines) + "\n"


def main() -> None:
    """Run the study, and write its results."""
    parser = argparse.ArgumentParser(prog="python -m studies.tiny_memory", description=__doc__)
    parser.add_argument("--results", type=Path, default=Path("results"), help="where to write (default: %(default)s)")
    parser.add_argument("--data-dir", type=Path, help="the folder that holds MNIST")
    options = parser.parse_args()
    data = mnist(options.data_dir)
    torch.set_num_threads(1)  # the network is too small for more to pay
    rows = []
    for memory, rate in CASES:
        rows.append(row_of(memory, rate, [run(data, memory, rate, seed) for seed in SEEDS]))
        print(json.dumps(rows[-1]._asdict()), flush=True)
    (options.results / "tiny-memory.md").write_text(table(rows), encoding="utf-8")
    text = json.dumps([row._asdict() for row in rows], indent=1)
    (options.results / "tiny-memory.json").write_text(text + "\n", encoding="utf-8")
