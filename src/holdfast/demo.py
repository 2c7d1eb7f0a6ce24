"""Five tasks, one network, every measure: what each of them keeps from being forgotten.

Each task is to read the 8×8 digits with their pixels in another order. A network that simply goes on training forgets
the orders it learned first; one that is held where it matters does not. Run it with ``python -m holdfast.demo``.
"""

import argparse
import statistics
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor, nn

import holdfast
from holdfast.data import load_digits

try:
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
    from rich.table import Table
except ImportError as error:
    raise ImportError("The demo draws with rich, which is not installed: pip install 'holdfast[demo]'") from error

TASKS = 5
HIDDEN = 1000
EPOCHS = 6
BATCH = 64
LEARNING_RATE = 0.003
TEST_IMAGES = 360

STRENGTHS = {
    "fine-tune": 0.0,
    "SI": 10.0,
    "SIU": 20.0,
    "SIB": 50.0,
    "SOS": 5.0,
    "EWC": 100.0,
    "EWC-sampled": 100.0,
    "EWC-empirical": 100.0,
    "sqrtFisher": 1.0,
    "AF": 5.0,
    "MAS": 10.0,
    "MASX": 10.0,
    "MAS-logits": 0.02,
    "MASX-logits": 0.05,
    "posterior": 2.0,
    "posterior-scaled": 2.0,
    "L2": 0.02,
    "L2-growing": 0.01,
    "magnitude": 0.2,
}
"""The strength c of each measure, chosen on a grid 1, 2, 5, 10, … with other seeds than the demo's."""


@dataclass(frozen=True)
class Task:
    """Training and test images of one order of pixels."""

    train: tuple[Tensor, Tensor]
    test: tuple[Tensor, Tensor]

    def batches(self, generator: torch.Generator) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield one epoch in random order."""
        x, y = self.train
        for chosen in torch.randperm(len(x), generator=generator).split(BATCH):
            yield x[chosen], y[chosen]


def make_tasks(generator: torch.Generator) -> list[Task]:
    """Return the permuted digits, a new order of pixels for every task."""
    images, labels = load_digits()
    x = images.flatten(1)
    shuffled = torch.randperm(len(x), generator=generator)
    test, train = shuffled[:TEST_IMAGES], shuffled[TEST_IMAGES:]
    orders = [torch.randperm(64, generator=generator) for _ in range(TASKS)]
    return [Task((x[train][:, order], labels[train]), (x[test][:, order], labels[test])) for order in orders]


def run(name: str, seed: int, strength: float | None = None) -> float:
    """Train the tasks one after another with a measure, and return the mean test accuracy over all of them."""
    torch.manual_seed(seed)
    generator = torch.Generator().manual_seed(seed)
    tasks = make_tasks(generator)
    model = nn.Sequential(nn.Linear(64, HIDDEN), nn.ReLU(), nn.Linear(HIDDEN, 10))
    measure = holdfast.measure(name)
    guard = holdfast.Consolidator(model, measure, strength=STRENGTHS[name] if strength is None else strength)
    second_batch = isinstance(measure, holdfast.PathMeasure) and measure.needs_independent_gradient
    loss = nn.CrossEntropyLoss()
    for task in tasks:
        optimizer = torch.optim.Adam(model.parameters(), lr=LEARNING_RATE, fused=True)
        guard.attach(optimizer)
        for _ in range(EPOCHS):
            others = task.batches(generator) if second_batch else None
            for x, y in task.batches(generator):
                optimizer.zero_grad()
                loss(model(x), y).backward()
                if others is not None:
                    other_x, other_y = next(others)
                    guard.observe_independent(loss(model(other_x), other_y))
                optimizer.step()
        guard.consolidate([task.train])
    with torch.no_grad():
        return statistics.mean(float((model(x).argmax(1) == y).float().mean()) for x, y in (t.test for t in tasks))


def compare(names: list[str], seeds: range, done: Callable[[str, int, float], None]) -> dict[str, list[float]]:
    """Run every measure with every seed, telling ``done`` of each run as it ends."""
    accuracies: dict[str, list[float]] = {name: [] for name in names}
    for name in names:
        for seed in seeds:
            accuracies[name].append(run(name, seed))
            done(name, seed, accuracies[name][-1])
    return accuracies


def main() -> None:
    """Show the table, with a bar for those who wait."""
    parser = argparse.ArgumentParser(prog="python -m holdfast.demo", description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--seeds", type=int, default=3, help="how many runs of each measure (3)")
    seeds = range(parser.parse_args().seeds)
    torch.set_num_threads(1)  # the network is too small for more to pay
    console = Console()
    started = time.monotonic()
    columns = (TextColumn("{task.description:>16}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console, transient=True) as progress:
        bar = progress.add_task("", total=len(STRENGTHS) * len(seeds))
        results = compare(list(STRENGTHS), seeds, lambda name, *_: progress.update(bar, advance=1, description=name))
    table = Table(title=f"Permuted digits: mean test accuracy of {TASKS} tasks after the last, {len(seeds)} seeds")
    table.add_column("measure", no_wrap=True)
    for column in ("strength", "accuracy", "gain"):
        table.add_column(column, justify="right", no_wrap=True)
    floor = statistics.mean(results["fine-tune"])
    for name, accuracies in results.items():
        mean = statistics.mean(accuracies)
        error = statistics.stdev(accuracies) / len(accuracies) ** 0.5 if len(accuracies) > 1 else 0.0
        gain = "" if name == "fine-tune" else f"{100 * (mean - floor):+.1f}"
        shown = f"{100 * mean:.1f} ± {100 * error:.1f}"
        table.add_row(name, f"{STRENGTHS[name]:g}", shown, gain)
    console.print(table)
    console.print(f"{len(STRENGTHS) * len(seeds)} runs in {time.monotonic() - started:.0f} s.")


if __name__ == "__main__":
    main()
