"""Permuted MNIST as GPM's authors have it: what projecting the step keeps, beside EWC and nothing.

`python -m studies.projection --data DATA` adds its runs to results/projection.json, one by one, and writes
results/projection.md from all that are there; `--only PATTERN` chooses some. The data are not downloaded.
"""

import argparse
import json
import time
import warnings
from dataclasses import asdict, dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import anchorhold
from anchorhold.seeding import generator_for
from anchorhold_lab.data.mnist import read_mnist
from anchorhold_lab.scenarios.permuted_images import permuted

TASKS, BATCH, RATE, KEPT_BACK = 10, 10, 0.01, 0.05
OWN = (("0.*", 0.95), ("*", 0.99))
"""GPM's own thresholds, as remembered: the first layer's, and all others'."""
SAMPLES = 300
"""That GPM takes inputs of, as remembered."""

AUTHORS = "GPM 93.9, OWM 90.7, EWC 90.0, experience replay 87.2, A-GEM 83.6"
"""Their table, as remembered."""


@dataclass(frozen=True)
class Way:
    """How tasks are kept, and for how long each is learned."""

    name: str
    method: str
    setting: float | tuple[tuple[str, float], ...] | None = None
    epochs: int = 1
    adam: bool = False
    seed: int = 0

    @property
    def key(self) -> str:
        """Return the name that the run has in the results."""
        return f"{self.epochs} epochs/{self.name}/{self.seed}"

    def guard(self, model: nn.Module) -> anchorhold.Guard:
        """Return the guard that keeps them."""
        if self.method == "none":
            return anchorhold.Guard(model, "fine-tune")
        if self.method == "EWC":
            assert isinstance(self.setting, float)
            measure = anchorhold.Fisher(samples=5000)
            return anchorhold.Guard(
                model,
                measure,
                strength=self.setting,
                from_scratch=True,
                options=anchorhold.GuardOptions(implicit=False),
            )
        if self.method == "owm":
            assert isinstance(self.setting, float)
            hold = anchorhold.Projection(samples=SAMPLES, method="owm", alpha=self.setting)
        else:
            threshold = dict(self.setting) if isinstance(self.setting, tuple) else self.setting
            assert threshold is not None
            hold = anchorhold.Projection(threshold, SAMPLES)
        return anchorhold.Guard(model, "fine-tune", holds=[hold])


def ways() -> list[Way]:
    """Return all of them: one epoch a task, to choose settings by, and five with what was chosen."""
    found = [Way("nothing", "none"), Way("projection, thresholds of GPM", "gpm", OWN)]
    found += [Way(f"projection, threshold {share:g}", "gpm", share) for share in (0.9, 0.99, 0.999)]
    found += [Way(f"EWC, strength {c:g}", "EWC", c) for c in (1.0, 3.0, 10.0, 30.0, 100.0)]
    found += [Way(f"soft projection, alpha {alpha:g}", "owm", alpha) for alpha in (0.1, 0.01, 0.001)]
    found += [
        Way("projection, thresholds of GPM, Adam", "gpm", OWN, adam=True),
        Way("nothing, Adam", "none", adam=True),
    ]
    return found


def published(chosen_strength: float, seeds: range) -> list[Way]:
    """Return those with the authors' five epochs."""
    found = []
    for seed in seeds:
        found += [
            Way("projection, thresholds of GPM", "gpm", OWN, 5, seed=seed),
            Way("nothing", "none", None, 5, seed=seed),
            Way(f"EWC, strength {chosen_strength:g}", "EWC", chosen_strength, 5, seed=seed),
        ]
    return found


def network() -> nn.Sequential:
    """Return the network, with first weights that torch draws."""
    layers = [nn.Linear(784, 100, bias=False), nn.Linear(100, 100, bias=False), nn.Linear(100, 10, bias=False)]
    return nn.Sequential(layers[0], nn.ReLU(), layers[1], nn.ReLU(), layers[2])


def run(way: Way, data: Path) -> dict[str, Any]:
    """Learn all tasks one after the other, and return accuracies in per cent."""
    warnings.simplefilter("ignore", anchorhold.AnchorholdWarning)  # of layers that are full: the table says it
    scenario = permuted(read_mnist(data), TASKS, seed=way.seed, validation=KEPT_BACK)
    torch.manual_seed(way.seed)
    model = network()
    guard = way.guard(model)
    after: list[list[float]] = []
    free = []
    for number, task in enumerate(scenario.tasks):
        x, y = task.train.x, task.train.y
        optimizer = torch.optim.Adam(model.parameters()) if way.adam else torch.optim.SGD(model.parameters(), lr=RATE)
        guard.attach(optimizer)
        for epoch in range(way.epochs):
            order = torch.randperm(len(y), generator=generator_for(way.seed, "order", number, epoch))
            for chosen in order.split(BATCH):
                optimizer.zero_grad()
                F.cross_entropy(model(x[chosen]), y[chosen]).backward()
                optimizer.step()
        some = torch.randperm(len(y), generator=generator_for(way.seed, "kept", number))[:5000]
        guard.consolidate([(x[part], y[part]) for part in some.split(500)])
        guard.detach()
        if guard.options.holds and isinstance(guard.options.holds[0], anchorhold.Projection):
            free.append([round(value) for value in guard.options.holds[0].free.values()])
        after.append([accuracy(model, each.test.x, each.test.y) for each in scenario.tasks[: number + 1]])
    validation = [accuracy(model, t.validation.x, t.validation.y) for t in scenario.tasks if t.validation is not None]
    return {
        **asdict(way),
        "validation": sum(validation) / TASKS,
        "test": sum(after[-1]) / TASKS,
        "learned": sum(row[-1] for row in after) / TASKS,
        "lost": sum(after[i][i] - after[-1][i] for i in range(TASKS - 1)) / (TASKS - 1),
        "free": free,
        "matrix": after,
    }


@torch.no_grad()
def accuracy(model: nn.Module, x: Tensor, y: Tensor) -> float:
    """Return the accuracy in per cent."""
    return 100 * float((model(x).argmax(1) == y).float().mean())


def costs(rounds: int = 15, steps: int = 200) -> dict[str, float]:
    """Return the processor's milliseconds for a training step, the least of some rounds, by what keeps old tasks."""
    x, y = torch.rand(steps * BATCH, 784), torch.randint(10, (steps * BATCH,))
    closed = {f"projection, {k} of 784 directions closed": k for k in (0, 100, 300, 392, 500, 700)}
    trained = {}
    for name, k in {"no guard": None, **closed}.items():
        model = network()
        optimizer = torch.optim.SGD(model.parameters(), lr=RATE)
        if k is not None:
            hold = anchorhold.Projection()
            guard = anchorhold.Guard(model, "fine-tune", holds=[hold])
            sizes = {"0.weight": (784, k), "2.weight": (100, k // 8), "4.weight": (100, k // 8)}
            bases = {n: torch.linalg.qr(torch.randn(size)).Q.contiguous() for n, size in sizes.items() if k}
            hold.load_state({f"{n}#inputs": basis for n, basis in bases.items()})
            guard.attach(optimizer)
        trained[name] = model, optimizer
    least = dict.fromkeys(trained, float("inf"))
    for _ in range(rounds):
        for name, (model, optimizer) in trained.items():
            start = time.process_time()
            for some, labels in zip(x.split(BATCH), y.split(BATCH), strict=True):
                optimizer.zero_grad()
                F.cross_entropy(model(some), labels).backward()
                optimizer.step()
            least[name] = min(least[name], 1e3 * (time.process_time() - start) / steps)
    return least


COST = "A training step, in milliseconds of one core"

COLUMNS = ("what keeps old tasks", "seed", "after all tasks", "validation", "when learned", "lost since", "free inputs")


def page(found: dict[str, dict[str, Any]]) -> str:
    """Return all runs as a page."""
    lines = [
        "# Projection on Permuted MNIST, in GPM's protocol",
        "",
        (
            f"`python -m studies.projection`, torch {torch.__version__}, one core. {TASKS} permutations, one head, "
            f"784-100-100-10 without biases, SGD with rate {RATE}, batches of {BATCH}; {KEPT_BACK:.0%} of the training "
            f"images are kept back for validation. Inputs of {SAMPLES} samples a task for projections, 5000 for the "
            "Fisher information. *After all tasks* is the mean test accuracy over all of them in per cent, *when "
            "learned* that of each just after its training, *free inputs* what is left of 784, 100 and 100 dimensions. "
            f"The authors' own table, as remembered: {AUTHORS}."
        ),
    ]
    for epochs, title in ((5, "Five epochs a task, as theirs"), (1, "One epoch a task, to choose settings by")):
        rows = [row for row in found.values() if row.get("epochs") == epochs]
        lines += ["", f"## {title}", "", f"| {' | '.join(COLUMNS)} |", "|" + "---|" * len(COLUMNS)]
        for row in sorted(rows, key=lambda row: -row["validation"]):
            cells = [row["name"], str(row["seed"]), "diverged", "", "", "", ""]
            if not row.get("diverged"):
                cells[2:] = [f"{row[key]:.2f}" for key in ("test", "validation", "learned", "lost")]
                cells += [", ".join(map(str, row["free"][-1])) if row["free"] else ""]
            lines.append(f"| {' | '.join(cells)} |")
    if COST in found:
        lines += ["", f"## {COST}", "", "| what keeps old tasks | ms |", "|---|---|"]
        lines += [f"| {name} | {milliseconds:.2f} |" for name, milliseconds in found[COST].items()]
    return "\n".join(lines) + "\n"


def main() -> None:
    """Run the study, and write its results."""
    parser = argparse.ArgumentParser(prog="python -m studies.projection", description=__doc__)
    parser.add_argument("--data", type=Path, default=Path("data"), help="the folder with MNIST (default: %(default)s)")
    parser.add_argument("--results", type=Path, default=Path("results"), help="where to write (default: %(default)s)")
    parser.add_argument("--only", default="*", help="which runs, a pattern of EPOCHS/NAME/SEED")
    parser.add_argument("--strength", type=float, default=10.0, help="of EWC with five epochs (default: %(default)s)")
    parser.add_argument("--seeds", type=int, default=1, help="with five epochs (default: %(default)s)")
    parser.add_argument("--cost", action="store_true", help="measure what a step costs, and nothing else")
    options = parser.parse_args()
    torch.set_num_threads(1)
    if options.cost:
        add(options.results, COST, costs())
        return
    for way in [*published(options.strength, range(options.seeds)), *ways()]:
        if fnmatchcase(way.key, options.only):
            try:
                row = run(way, options.data)
            except anchorhold.errors.NotFiniteError:
                row = {**asdict(way), "diverged": True, "validation": 0.0}
            print(json.dumps({key: row.get(key) for key in ("name", "epochs", "test", "diverged")}), flush=True)
            add(options.results, way.key, row)


def add(folder: Path, key: str, row: dict[str, Any]) -> None:
    """Add what was found to what there is, and write both files."""
    path = folder / "projection.json"
    found = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
    found[key] = row
    path.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    (folder / "projection.md").write_text(page(found), encoding="utf-8")
