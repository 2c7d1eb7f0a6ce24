"""A hold after the step beside one in the gradient: which keeps more, and over how wide a range of strengths.

``python -m benchmarks.implicit STORE`` writes results/implicit.md and .json: EWC on permuted digits, as a diagonal and
in rotated coordinates, with SGD, momentum, Adam and AdamW, over six decades of strengths. ``--scenario permuted-mnist
--data-dir DATA`` does the same there. The best strength is the one of the best mean on validation data, with the seeds
that are then tested; strengths within a point of it are counted in decades. What is in the store is not run again.
"""

import argparse
import itertools
import json
import math
import statistics
import warnings
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import nn

import holdfast
from benchmarks.harness import interleaved
from holdfast.lab.experiments import Spec, Store, execute, paper_spec

OPTIMISERS: dict[str, dict[str, Any]] = {
    "SGD": {"optimizer": "sgd", "momentum": 0.0, "learning_rate": 0.3},
    "momentum": {"optimizer": "sgd", "momentum": 0.9, "learning_rate": 0.03},
    "Adam": {"optimizer": "adam"},
    "AdamW": {"optimizer": "adamw"},
}
STRENGTHS = {
    "diagonal": tuple(10.0**power for power in range(7)),
    "rotated": tuple(10.0**power for power in range(-1, 6)),
}
SEEDS = (0, 1, 2)
SIZES: dict[str, dict[str, Any]] = {
    "permuted-digits": {"hidden": (100,)},
    "permuted-mnist": {"hidden": (400, 400), "epochs": 3, "samples": 5000},
}
QUICK = {"hidden": (8,), "epochs": 1, "tasks": 2, "samples": 20}


def specs_of(scenario: str, way: Mapping[str, Any], changes: Mapping[str, Any]) -> partial[Spec]:
    """Return what makes the specs of one way, given seed, strength and judge_by."""
    own = {"form": way["form"], "implicit": way["implicit"], "reinitialise": False, **OPTIMISERS[way["optimiser"]]}
    return partial(paper_spec, scenario, "EWC", **{**SIZES[scenario], **own, **changes})


def ways() -> Iterator[dict[str, Any]]:
    """Yield all ways; in rotated coordinates, only SGD's steps can be pulled back implicitly."""
    for form, optimiser, implicit in itertools.product(STRENGTHS, OPTIMISERS, (False, True)):
        if form == "diagonal" or OPTIMISERS[optimiser]["optimizer"] == "sgd":
            yield {"form": form, "optimiser": optimiser, "implicit": implicit}


def mean_of(specs: Sequence[Spec], store: Store) -> float | None:
    """Return the mean accuracy over all tasks after the last, in per cent; nothing if a run has diverged."""
    found = [store.get(spec.id) for spec in specs]
    done = [100 * result.average_accuracy for result in found if result is not None]
    return statistics.mean(done) if len(done) == len(specs) else None


def row_of(scenario: str, way: Mapping[str, Any], changes: Mapping[str, Any], store: Store, run: Any) -> dict[str, Any]:
    """Make all runs of a way, and return what came out."""
    make = specs_of(scenario, way, changes)
    strengths = STRENGTHS[way["form"]]
    tried = {c: [make(strength=c, seed=seed, judge_by="validation") for seed in SEEDS] for c in strengths}
    run([spec for specs in tried.values() for spec in specs], store)
    kept = {c: mean_of(specs, store) for c, specs in tried.items()}
    best = max(strengths, key=lambda c: -math.inf if kept[c] is None else kept[c])
    tests = [make(strength=best, seed=seed) for seed in SEEDS]
    run(tests, store)
    found = [store.get(spec.id) for spec in tests]
    accuracies = [100 * result.average_accuracy for result in found if result is not None]
    return {**way, "validation": list(kept.items()), "best": best, "decades": width(kept), "test": accuracies}


def width(kept: Mapping[float, float | None], points: float = 1.0) -> float:
    """Return over how many decades accuracy is within some points of the best, read off lines between strengths.

    A range that reaches an end of the grid is counted up to there.
    """
    strengths = sorted(kept)
    heights = [-math.inf if (height := kept[c]) is None else height for c in strengths]
    floor = max(heights) - points
    first = last = heights.index(max(heights))
    while first > 0 and heights[first - 1] >= floor:
        first -= 1
    while last < len(heights) - 1 and heights[last + 1] >= floor:
        last += 1
    found = math.log10(strengths[last] / strengths[first])
    for inner, outer in ((first, first - 1), (last, last + 1)):
        if 0 <= outer < len(heights) and math.isfinite(heights[outer]):
            share = (heights[inner] - floor) / (heights[inner] - heights[outer])
            found += share * abs(math.log10(strengths[outer] / strengths[inner]))
    return found


def step_ratios(repeats: int, *, sides: tuple[int, ...] = (784, 400, 400, 10)) -> dict[str, float]:
    """Return how long a step takes with an implicit hold, for one with an explicit hold, by optimiser and form."""
    cases = {}
    kinds = {
        "SGD": partial(torch.optim.SGD, lr=1e-3, momentum=0.9),
        "Adam": partial(torch.optim.Adam, lr=1e-4, fused=True),
    }
    for (name, kind), form in itertools.product(kinds.items(), STRENGTHS):
        for implicit in (False, True):
            if implicit and form == "rotated" and name != "SGD":
                continue
            cases[f"{name}, {form}, {implicit}"] = _stepping(kind, form, implicit, sides)
    seconds = {name: statistics.median(found) for name, found in interleaved(cases, repeats).items()}
    pairs = [name.removesuffix(", True") for name in seconds if name.endswith("True")]
    return {name: seconds[f"{name}, True"] / seconds[f"{name}, False"] for name in pairs}


def _stepping(kind: Any, form: str, implicit: bool, sides: tuple[int, ...]) -> Any:
    """Return five steps of a network that is held, of 64 samples each."""
    torch.manual_seed(0)
    layers: list[nn.Module] = []
    for inputs, outputs in itertools.pairwise(sides):
        layers += [nn.Linear(inputs, outputs), nn.ReLU()]
    model = nn.Sequential(*layers[:-1])
    x, y = torch.randn(64, sides[0]), torch.randint(sides[-1], (64,))
    guard = holdfast.Consolidator(model, "EWC", 1e-3, form=form, implicit=implicit)
    guard.consolidate([x])
    optimizer = kind(model.parameters())
    guard.attach(optimizer)

    def steps() -> None:
        for _ in range(5):
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(x), y).backward()
            optimizer.step()

    return steps


def table(rows: Sequence[Mapping[str, Any]], ratios: Mapping[str, float], scenario: str) -> str:
    """Return the rows as a page."""
    size = ", ".join(f"{name}={value}" for name, value in SIZES[scenario].items())
    lines = [
        f"# A hold after the step, and one in the gradient: {scenario}",
        "",
        (
            f"`python -m benchmarks.implicit`, torch {torch.__version__}; {size}. EWC, no re-initialisation, no search "
            "of learning rates. Test accuracy over all tasks after the last, in per cent, mean and standard error of "
            f"{len(SEEDS)} seeds, at the best of {len(STRENGTHS['diagonal'])} strengths a decade apart by validation; "
            "then over how many decades validation accuracy is within a point of that best, between strengths by "
            "straight lines, and the validation accuracy at every strength (– where a run diverged)."
        ),
    ]
    for form, strengths in STRENGTHS.items():
        heads = " | ".join(f"{c:g}" for c in strengths)
        lines += ["", f"| {form} | hold | best c | test | decades | {heads} |", "|---" * (5 + len(strengths)) + "|"]
        for row in rows:
            if row["form"] == form:
                cells = [f"{height:.1f}" if height is not None else "–" for _, height in row["validation"]]
                test = row["test"]
                error = statistics.stdev(test) / math.sqrt(len(test)) if len(test) > 1 else math.nan
                shown = f"{statistics.mean(test):.1f} ± {error:.1f}" if test else "–"
                hold = "implicit" if row["implicit"] else "explicit"
                given = [row["optimiser"], hold, f"{row['best']:g}", shown, f"{row['decades']:.1f}", *cells]
                lines.append(f"| {' | '.join(given)} |")
    lines += [
        "",
        "A step with an implicit hold takes, for one with an explicit hold (784-400-400-10, 64 samples, a CPU):",
    ]
    lines += ["", *(f"- {name}: {ratio:.2f}" for name, ratio in ratios.items())]
    return "\n".join(lines) + "\n"


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.implicit", description=__doc__)
    parser.add_argument("store", type=Path, help="where runs are kept")
    parser.add_argument("--scenario", choices=SIZES, default="permuted-digits")
    parser.add_argument("--data-dir", type=Path, help="the folder that holds MNIST")
    parser.add_argument("--device", help="what to train on; a GPU if there is one")
    parser.add_argument("--results", type=Path, default=Path("results"), help="where to write (default: %(default)s)")
    parser.add_argument("--quick", action="store_true", help="a rehearsal at a tiny size")
    options = parser.parse_args(arguments)
    warnings.simplefilter("ignore", holdfast.HoldfastWarning)  # strengths that are too much are what is looked at
    store, run = Store(options.store), partial(execute, data_dir=options.data_dir, device=options.device)
    rows = []
    for way in ways():
        rows.append(row_of(options.scenario, way, QUICK if options.quick else {}, store, run))
        print(json.dumps(rows[-1]), flush=True)
    ratios = step_ratios(2 if options.quick else 15, sides=(8, 8, 4) if options.quick else (784, 400, 400, 10))
    name = "implicit" if options.scenario == "permuted-digits" else f"implicit-{options.scenario}"
    options.results.mkdir(parents=True, exist_ok=True)
    (options.results / f"{name}.md").write_text(table(rows, ratios, options.scenario), encoding="utf-8")
    found = {"rows": rows, "step ratios": ratios, "torch": torch.__version__}
    (options.results / f"{name}.json").write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
