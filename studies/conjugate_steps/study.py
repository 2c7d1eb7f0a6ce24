"""A hold after Adam's step in rotated coordinates, by conjugate gradients: how many products a step it takes.

After the step of an optimiser with a rate h for each weight, the implicit hold solves (1/h + 2cQ) D' = D/h. With one
rate for a layer, as SGD has, Q's own coordinates solve it at once. Adam's rates are the weights' own, and no
coordinates have both, so that it is solved by conjugate gradients, preconditioned by the diagonal, from D on, with so
many products of Q at every step. Permuted digits, EWC; the same hold in the gradient, which is what ``attach`` does
with Adam, stands beside.

``python -m studies.conjugate_steps`` writes results/conjugate-steps.md and .json.
"""

import argparse
import itertools
import statistics
import time
import warnings
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import anchorhold
from anchorhold.forms.base import Displacement, Matrix
from anchorhold.forms.sums import conjugate_gradients
from anchorhold_lab.analysis.repetitions import standard_error
from anchorhold_lab.training.relative_guard import RelativeGuard
from benchmarks.harness import write_rows
from studies.permuted_digits import BATCH, RATE, STEPS, WIDTH, Data

COMMAND = "python -m studies.conjugate_steps"
TASKS = 3
STRENGTHS = (0.003, 0.01, 0.03, 0.1, 0.3, 1.0)
"""Relative ones."""
PRODUCTS = (0, 1, 3, 10)
"""At most, for each layer at a step, beside one for the right-hand side; 0: the hold is in the gradient."""
SEEDS = (0, 1, 2)


def run(products: int, strength: float, seed: int) -> dict[str, Any]:
    """Learn all tasks, and return how well they are known at the end and what the steps left unsolved."""
    data = Data(seed)
    torch.manual_seed(seed)
    sizes = (data.train[0].shape[1], WIDTH, WIDTH, 10)
    layers = [nn.Linear(inputs, outputs) for inputs, outputs in itertools.pairwise(sizes)]
    model = nn.Sequential(layers[0], nn.ReLU(), layers[1], nn.ReLU(), layers[2])
    guard = RelativeGuard(model, "EWC", relative_strength=strength, form="rotated", from_scratch=True)
    left: list[float] = []
    started = time.process_time()
    for task, permutation in enumerate(data.permutations[:TASKS]):
        x, y = data.train[0][:, permutation], data.train[1]
        optimizer = torch.optim.Adam(model.parameters(), lr=RATE)
        guard.attach(optimizer, hold=not products)
        generator = torch.Generator().manual_seed(1000 * seed + task)
        for _ in range(STEPS):
            chosen = torch.randint(len(x), (BATCH,), generator=generator)
            optimizer.zero_grad()
            F.cross_entropy(model(x[chosen]), y[chosen]).backward()
            optimizer.step()
            if products and task:
                left.append(pull(guard, optimizer, products))
        guard.detach()
        guard.consolidate([x])
    found = {"seconds": time.process_time() - started, "unsolved": statistics.median(left) if left else None}
    with torch.no_grad():
        for what, (x, y) in (("validation", data.validation), ("test", data.test)):
            right = [float((model(x[:, p]).argmax(1) == y).float().mean()) for p in data.permutations[:TASKS]]
            found[what] = 100 * statistics.mean(right)
    return found


@torch.no_grad()
def pull(guard: anchorhold.Guard, optimizer: torch.optim.Optimizer, products: int) -> float:
    """Pull all layers back after a step, and return the largest share of an equation that is not solved."""
    assert isinstance(guard.strength, float)
    unsolved = 0.0
    for matrix in guard.held.matrices.values():
        weights = {name: guard.parameters[name] for name in matrix.block.parameters}
        d = {name: weight - guard.anchor[name] for name, weight in weights.items()}
        inverse_rates = {name: 1 / rate_of(optimizer, weight) for name, weight in weights.items()}
        change, residual = correction(matrix, d, inverse_rates, guard.strength, products)
        for name, weight in weights.items():
            weight.add_(change[name])
        unsolved = max(unsolved, residual)
    return unsolved


def rate_of(optimizer: torch.optim.Optimizer, weight: nn.Parameter) -> Tensor:
    """Return how far Adam goes for a unit of a gradient that stays, weight by weight."""
    rate: Tensor = optimizer.param_groups[0]["lr"] / root_of(optimizer, weight)
    return rate


def root_of(optimizer: torch.optim.Optimizer, weight: nn.Parameter) -> Tensor:
    """Return √v̂ + ε of Adam, by which a weight's step is divided."""
    group, state = optimizer.param_groups[0], optimizer.state[weight]
    unbiased = state["exp_avg_sq"] / (1 - group["betas"][1] ** float(state["step"]))
    root: Tensor = unbiased.sqrt() + group["eps"]
    return root


def correction(
    matrix: Matrix, d: Displacement, inverse_rates: Displacement, strength: float, products: int
) -> tuple[dict[str, Tensor], float]:
    """Return D' − D and what is left of the equations, as a share: (P + 2cQ)(D' − D) = −2cQD with P = 1/h."""

    def apply(x: Displacement) -> dict[str, Tensor]:
        return {name: inverse_rates[name] * x[name] + 2 * strength * q for name, q in matrix.apply(x).items()}

    def precondition(x: Displacement, diagonal: Displacement) -> dict[str, Tensor]:
        return {name: each / (inverse_rates[name] + 2 * strength * diagonal[name]) for name, each in x.items()}

    b = {name: -2 * strength * q for name, q in matrix.apply(d).items()}
    near = partial(precondition, diagonal=matrix.diagonal())
    solution = conjugate_gradients(apply, b, precondition=near, tolerance=1e-4, most_steps=products)
    return solution.x, solution.residual


def page(rows: list[dict[str, Any]], where: dict[str, str]) -> str:
    """Return the page."""
    lines = ["# A hold after Adam's step, by conjugate gradients", ""]
    lines += [*(f"- {key}: {value}" for key, value in where.items()), ""]
    lines.append(
        f"EWC in rotated coordinates on permuted digits, {TASKS} tasks of {STEPS} steps of {BATCH}, Adam at {RATE:g}, "
        f"64-{WIDTH}-{WIDTH}-10, {len({row['seed'] for row in rows})} seeds. Test accuracy over all tasks after the "
        "last at the best of the relative strengths by validation data, and at each of them; conjugate gradients "
        "stop at so many products of Q for each layer and step, beside one for the right-hand side. *Unsolved*: the "
        "median residual of the worst layer of a step at that strength. Seconds are of one core, for a whole run."
    )
    strengths = sorted({row["strength"] for row in rows})
    lines += [
        "",
        f"| products a step | best | at s = | unsolved | seconds | {' | '.join(f's = {s:g}' for s in strengths)} |",
    ]
    lines.append("|---" * (5 + len(strengths)) + "|")
    for products in sorted({row["products"] for row in rows}):
        own = {s: [r for r in rows if (r["products"], r["strength"]) == (products, s)] for s in strengths}
        own = {s: each for s, each in own.items() if each}
        best = max(own, key=lambda s: statistics.mean(r["validation"] for r in own[s]))
        unsolved = "–" if not products else f"{statistics.median(r['unsolved'] for r in own[best]):.2g}"
        cells = ["none: in the gradient" if not products else str(products), mean_of(own[best]), f"{best:g}", unsolved]
        cells.append(f"{statistics.mean(r['seconds'] for r in own[best]):.0f}")
        cells += [mean_of(own[s]) if s in own else "–" for s in strengths]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def mean_of(rows: list[dict[str, Any]]) -> str:
    """Return the mean test accuracy, with its standard error where there are several seeds."""
    tests = [row["test"] for row in rows]
    error = f" ± {standard_error(tests):.1f}" if len(tests) > 1 else ""
    return f"{statistics.mean(tests):.1f}{error}"


def main(arguments: list[str] | None = None) -> None:
    """Run all of it, and write the page after each number of products."""
    parser = argparse.ArgumentParser(prog="python -m studies.conjugate_steps", description=__doc__)
    parser.add_argument("--results", type=Path, default=Path("results"), help="where to write (default: %(default)s)")
    options = parser.parse_args(arguments)
    torch.set_num_threads(1)
    warnings.simplefilter("ignore", anchorhold.AnchorholdWarning)  # of steps that nothing holds: they are pulled here
    rows: list[dict[str, Any]] = []
    for products in PRODUCTS:
        for strength in STRENGTHS:
            for seed in SEEDS:
                rows.append({"products": products, "strength": strength, "seed": seed, **run(products, strength, seed)})
                print(rows[-1], flush=True)
        write_rows(options.results, "conjugate-steps", COMMAND, rows, page)
