"""Measures along the training path in rotated coordinates: are they worth it?

SOS keeps the root of the mean square of batches' gradients. In coordinates of a layer's own that is the root of what
the optimiser SOAP keeps (Vyas et al. 2024, arXiv 2409.11321). The coordinates have to be fixed when a task begins, or
what was added up so far would have to be turned, and those of the trained network are known only at its end. Permuted
digits, five tasks, one network for all:

- EWC and SOS, as a diagonal;
- the Fisher information in rotated coordinates, and its root, measured at the end of a task;
- SOS, and the mean square without the root, in the coordinates of when the task began;
- SOS in the coordinates of the task's end, which takes a second training on the same batches: what the beginning costs.

``python -m studies.rotated_path`` writes results/rotated-path.md.
"""

import argparse
import itertools
import json
import statistics
import time
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import anchorhold
from anchorhold.engine.reductions import Basis, joined
from anchorhold.forms import RotatedMatrix
from anchorhold_lab.analysis.repetitions import standard_error
from benchmarks.undamped import undamped
from studies.permuted_digits import BATCH, RATE, STEPS, TASKS, WIDTH, Data

SEEDS = range(5)
GRID = tuple(base * 10.0**power for power in range(-2, 5) for base in (1, 3))


@dataclass(frozen=True)
class Way:
    """How a task's importance is found."""

    name: str
    along_the_path: bool
    coordinates: str
    """``"weights"``, or the layers' own as they are at the task's ``"beginning"`` or ``"end"``."""
    root: float = 1.0
    """The power that mean squares are raised to."""


WAYS = [
    Way("EWC", False, "weights"),
    Way("EWC, rotated", False, "end"),
    Way("√Fisher, rotated", False, "end", 0.5),
    Way("SOS", True, "weights", 0.5),
    Way("SOS, rotated as the task begins", True, "beginning", 0.5),
    Way("mean squares, rotated as the task begins", True, "beginning"),
    Way("SOS, rotated as the task ends", True, "end", 0.5),
]


def measured(model: nn.Module, x: Tensor) -> dict[str, RotatedMatrix]:
    """Return the Fisher information in the coordinates that it has now."""
    guard = anchorhold.Guard(model, "EWC", form=undamped("rotated"))
    guard.consolidate([x])
    return {name: matrix for name, matrix in guard.held.matrices.items() if isinstance(matrix, RotatedMatrix)}


def train(
    model: nn.Module,
    samples: tuple[Tensor, Tensor],
    total: dict[str, RotatedMatrix],
    strength: float,
    generator: torch.Generator,
    bases: dict[str, RotatedMatrix] | None,
) -> dict[str, Tensor]:
    """Learn a task under c⟨D, Q(D)⟩, and return the mean squares of its gradients in the coordinates of ``bases``."""
    x, y = samples
    parameters = dict(model.named_parameters())
    anchor = {name: p.detach().clone() for name, p in parameters.items()}
    optimizer = torch.optim.Adam(model.parameters(), lr=RATE)
    squares: dict[str, Tensor] = {}
    for _ in range(STEPS):
        chosen = torch.randint(len(x), (BATCH,), generator=generator)
        optimizer.zero_grad()
        F.cross_entropy(model(x[chosen]), y[chosen]).backward()
        with torch.no_grad():
            gradients = {name: p.grad for name, p in parameters.items() if p.grad is not None}
            for name, matrix in (bases or {}).items():
                turned = in_coordinates(joined(matrix.block, gradients), matrix.basis)
                squares[name] = squares.get(name, torch.zeros_like(turned)) + turned.square() / STEPS
            for matrix in total.values():
                d = {name: parameters[name] - anchor[name] for name in matrix.block.parameters}
                for name, pull in matrix.apply(d).items():
                    gradients[name].add_(pull, alpha=2 * strength)
        optimizer.step()
    return squares


def in_coordinates(gradient: Tensor, basis: Basis) -> Tensor:
    """Return a layer's gradient in the coordinates of a basis."""
    gradient = gradient if basis.outputs is None else basis.outputs.mT @ gradient
    return gradient if basis.inputs is None else gradient @ basis.inputs


def learn(
    way: Way,
    model: nn.Module,
    samples: tuple[Tensor, Tensor],
    total: dict[str, RotatedMatrix],
    strength: float,
    seed: int,
) -> dict[str, RotatedMatrix]:
    """Learn a task, and return its importance."""
    generator = torch.Generator().manual_seed(seed)
    start = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    if not way.along_the_path:
        train(model, samples, total, strength, generator, None)
        found = measured(model, samples[0])
        if way.coordinates == "end":
            return {n: RotatedMatrix(m.block, m.s**way.root, m.basis, m.spectra) for n, m in found.items()}
        guard = anchorhold.Guard(model, "EWC")
        guard.consolidate([samples[0]])
        return {n: unrotated(m, joined(m.block, guard.importance)) for n, m in found.items()}
    bases = measured(model, samples[0])
    if way.coordinates == "weights":
        bases = {name: unrotated(matrix, matrix.s) for name, matrix in bases.items()}
    squares = train(model, samples, total, strength, generator, bases)
    if way.coordinates == "end":
        bases = measured(model, samples[0])
        model.load_state_dict(start)
        squares = train(model, samples, total, strength, torch.Generator().manual_seed(seed), bases)
    return {n: RotatedMatrix(m.block, squares[n] ** way.root, m.basis, m.spectra) for n, m in bases.items()}


def unrotated(matrix: RotatedMatrix, s: Tensor) -> RotatedMatrix:
    """Return S as it is, in the coordinates of the weights."""
    return RotatedMatrix(matrix.block, s, Basis(None, None), Basis(None, None))


def run(way: Way, strength: float, seed: int) -> dict[str, float]:
    """Learn all tasks, and return the average accuracies, the first task's, and the seconds it took."""
    data, started = Data(seed), time.perf_counter()
    torch.manual_seed(seed)
    pixels = data.train[0].shape[1]
    layers = (nn.Linear(pixels, WIDTH), nn.ReLU(), nn.Linear(WIDTH, WIDTH), nn.ReLU(), nn.Linear(WIDTH, 10))
    model = nn.Sequential(*layers)
    total: dict[str, RotatedMatrix] = {}
    for task, permutation in enumerate(data.permutations):
        x, y = data.train
        found = learn(way, model, (x[:, permutation], y), total, strength, 1000 * seed + task)
        total = {n: m.add(total[n], 1.0) if n in total else m for n, m in found.items()}
    seconds = time.perf_counter() - started
    with torch.no_grad():
        right = {
            what: [float((model(x[:, p]).argmax(1) == y).float().mean()) for p in data.permutations]
            for what, (x, y) in (("validation", data.validation), ("test", data.test))
        }
    means = {what: 100 * statistics.mean(each) for what, each in right.items()}
    return {**means, "first": 100 * right["test"][0], "seconds": seconds}


def row_of(way: Way, runs: dict[float, list[dict[str, float]]]) -> dict[str, object]:
    """Return what a way comes to with the strength that is best on validation data."""
    best = max(runs, key=lambda c: statistics.mean(one["validation"] for one in runs[c]))
    tests = [one["test"] for one in runs[best]]
    return {
        "way": way.name,
        "strength": best,
        "average": statistics.mean(tests),
        "error": standard_error(tests),
        "first": statistics.mean(one["first"] for one in runs[best]),
        "seconds": statistics.median(one["seconds"] for each in runs.values() for one in each),
    }


def table(rows: list[dict[str, object]]) -> str:
    """Return the rows as a page."""
    lines = [
        "# Measures along the path, in rotated coordinates",
        "",
        (
            f"`python -m studies.rotated_path`, torch {torch.__version__}. Permuted digits, {TASKS} tasks of "
            f"{STEPS} steps of {BATCH} with Adam, one head, {len(SEEDS)} seeds; each strength the best on validation "
            f"data of {len(GRID)}. Test accuracy over all tasks after the last in per cent with its standard error, "
            "the first task's, and the seconds of a run on one busy core, for comparison with each other."
        ),
        "",
        "| importance | strength | average | first task | seconds |",
        "|---|---|---|---|---|",
    ]
    lines += [
        f"| {row['way']} | {row['strength']:g} | {row['average']:.1f} ± {row['error']:.1f} | {row['first']:.1f} | "
        f"{row['seconds']:.1f} |"
        for row in rows
    ]
    return "\n".join(lines) + "\n"


def main() -> None:
    """Run the study, and write its results."""
    parser = argparse.ArgumentParser(prog="python -m studies.rotated_path", description=__doc__)
    parser.add_argument("--results", type=Path, default=Path("results"), help="where to write (default: %(default)s)")
    options = parser.parse_args()
    cases = [(way, c, seed) for way in WAYS for c in GRID for seed in SEEDS]
    rows = []
    with ProcessPoolExecutor(initializer=torch.set_num_threads, initargs=(1,)) as pool:
        done = zip(cases, pool.map(run, *zip(*cases, strict=True)), strict=True)
        for way, group in itertools.groupby(done, key=lambda one: one[0][0]):
            runs: dict[float, list[dict[str, float]]] = {}
            for (_, c, _), accuracies in group:
                runs.setdefault(c, []).append(accuracies)
            rows.append(row_of(way, runs))
            print(json.dumps(rows[-1]), flush=True)
    (options.results / "rotated-path.md").write_text(table(rows), encoding="utf-8")
    (options.results / "rotated-path.json").write_text(json.dumps(rows, indent=1) + "\n", encoding="utf-8")
