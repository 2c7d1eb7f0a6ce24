"""A hold after the step beside one in the gradient: which keeps more, and over how wide a range of strengths.

``python -m studies.implicit STORE`` writes results/implicit.md and .json: EWC on permuted digits, as a diagonal, in
rotated coordinates and by Kronecker factors, with SGD, momentum, Adam and AdamW, over six decades of strengths.
``--scenario permuted-mnist --data-dir DATA`` and ``--scenario split-cifar`` do the same there, with the paper's
networks and less of everything else, and with the damping that forms have by default. The best strength is the one of
the best mean on validation data, on digits with the seeds that are then tested, elsewhere with one of its own;
strengths within a point of it are counted in decades. What is in the store is not run again.

``--rates`` is the control: SGD with and without momentum at smaller learning rates too, which let an explicit hold be
stronger. It is added to what the results already have; and so are the forms that ``--forms`` names, alone.
"""

import argparse
import itertools
import json
import math
import statistics
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import nn

import anchorhold
from anchorhold_lab.analysis.repetitions import standard_error
from anchorhold_lab.experiments import SCENARIOS, Spec, Store, execute, paper_spec
from benchmarks.harness import interleaved
from benchmarks.undamped import undamped, unsaid

OPTIMISERS: dict[str, dict[str, Any]] = {
    "SGD": {"optimizer": "sgd", "momentum": 0.0, "learning_rate": 0.3},
    "momentum": {"optimizer": "sgd", "momentum": 0.9, "learning_rate": 0.03},
    "Adam": {"optimizer": "adam"},
    "AdamW": {"optimizer": "adamw"},
}
STRENGTHS = {
    "diagonal": tuple(10.0**power for power in range(7)),
    "rotated": tuple(10.0**power for power in range(-1, 6)),
    "kronecker": tuple(10.0**power for power in range(-1, 6)),
}
SLOWER = (1, 3, 10, 30)
"""By how much a learning rate is divided where it is searched too: the strength that SGD bears grows by as much."""
SEEDS = (0, 1, 2)
SEARCH_SEEDS = {"permuted-digits": SEEDS, "permuted-mnist": (1000,), "split-cifar": (1000,)}
SIZES: dict[str, dict[str, Any]] = {
    "permuted-digits": {"hidden": (100,)},
    "permuted-mnist": {"tasks": 5, "epochs": 3, "samples": 5000, "precision": "bf16"},
    "split-cifar": {"epochs": 10, "samples": 500, "precision": "bf16"},
}
"""What is smaller than the paper's, so that a search over everything is affordable; its networks are not."""
RATES = {"split-cifar": {"SGD": (0.3, 0.1, 0.03), "momentum": (0.03, 0.01, 0.003)}}
"""Where a rate is to be found first: that by which the first tasks are learned best without any hold, by validation."""
QUICK = {"hidden": (8,), "epochs": 1, "tasks": 2, "samples": 20}


def form_settings(scenario: str, form: str) -> dict[str, Any]:
    """Return how a form is asked for: on digits as it was before it had a damping by default."""
    if scenario == "permuted-digits":
        return unsaid(form)
    return {"precision": "tf32"} if form == "rotated" else {}


def specs_of(scenario: str, way: Mapping[str, Any], changes: Mapping[str, Any]) -> partial[Spec]:
    """Return what makes the specs of one way, given seed, strength and judge_by."""
    own = {"form": way["form"], "form_settings": form_settings(scenario, way["form"]), "implicit": way["implicit"]}
    own |= {"reinitialise": False, **OPTIMISERS[way["optimiser"]]}
    rate = {"learning_rate": way["rate"]} if "rate" in way else {}
    return partial(paper_spec, scenario, "EWC", **{**SIZES[scenario], **own, **rate, **changes})


def rates_of(scenario: str, changes: Mapping[str, Any], store: Store, run: Any) -> dict[str, float]:
    """Return the learning rate of each optimiser whose rate is to be found first."""
    found = {}
    first = SCENARIOS[scenario].possible_tasks[0]
    for optimiser, rates in RATES.get(scenario, {}).items():
        own = {**SIZES[scenario], **OPTIMISERS[optimiser], **changes, "tasks": first, "judge_by": "validation"}
        tried = {
            rate: [
                paper_spec(scenario, "fine-tune", **{**own, "learning_rate": rate}, seed=seed)
                for seed in SEARCH_SEEDS[scenario]
            ]
            for rate in rates
        }
        run([spec for specs in tried.values() for spec in specs], store)
        found[optimiser] = best_of({rate: mean_of(specs, store) for rate, specs in tried.items()})
    return found


def ways(forms: Iterable[str] = STRENGTHS) -> Iterator[dict[str, Any]]:
    """Yield all ways; in other coordinates than the weights' own, only SGD's steps can be pulled back implicitly."""
    for form, optimiser, implicit in itertools.product(forms, OPTIMISERS, (False, True)):
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
    kept = validated(make, STRENGTHS[way["form"]], SEARCH_SEEDS[scenario], store, run)
    best = best_of(kept)
    test = tested(make, best, store, run)
    return {**way, "validation": list(kept.items()), "best": best, "decades": width(kept), "test": test}


def validated(
    make: partial[Spec], strengths: Sequence[float], seeds: Sequence[int], store: Store, run: Any
) -> dict[float, float | None]:
    """Return what is kept at each strength, by validation data."""
    tried = {c: [make(strength=c, seed=seed, judge_by="validation") for seed in seeds] for c in strengths}
    run([spec for specs in tried.values() for spec in specs], store)
    return {c: mean_of(specs, store) for c, specs in tried.items()}


def best_of(kept: Mapping[float, float | None]) -> float:
    """Return where most is kept; where runs have diverged, nothing is."""
    return max(kept, key=lambda c: -math.inf if (height := kept[c]) is None else height)


def tested(make: partial[Spec], strength: float, store: Store, run: Any) -> list[float]:
    """Return the test accuracies of all seeds at a strength, in per cent."""
    tests = [make(strength=strength, seed=seed) for seed in SEEDS]
    run(tests, store)
    found = [store.get(spec.id) for spec in tests]
    return [100 * result.average_accuracy for result in found if result is not None]


def rate_ways(forms: Iterable[str] = STRENGTHS) -> Iterator[dict[str, Any]]:
    """Yield the ways whose learning rate is searched too: those of SGD, which an explicit hold can destroy."""
    return (way for way in ways(forms) if OPTIMISERS[way["optimiser"]]["optimizer"] == "sgd")


def rate_row(
    scenario: str, way: Mapping[str, Any], changes: Mapping[str, Any], store: Store, run: Any
) -> dict[str, Any]:
    """Make the runs of a way at every rate and strength, and return the best by validation, then tested."""
    usual = way.get("rate", OPTIMISERS[way["optimiser"]]["learning_rate"])
    makers = {
        rate: specs_of(scenario, way, {**changes, "learning_rate": rate}) for rate in (usual / by for by in SLOWER)
    }
    strengths, seeds = STRENGTHS[way["form"]], SEARCH_SEEDS[scenario]
    kept = {rate: validated(make, strengths, seeds, store, run) for rate, make in makers.items()}
    heights = {rate: own[best_of(own)] for rate, own in kept.items()}
    rate = best_of(heights)
    best = best_of(kept[rate])
    return {
        **way,
        "validation": [[each, list(own.items())] for each, own in kept.items()],
        "rate": rate,
        "best": best,
        "test": tested(makers[rate], best, store, run),
    }


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


def step_ratios(repeats: int, forms: Iterable[str], *, sides: tuple[int, ...]) -> dict[str, float]:
    """Return how long a step takes with an implicit hold, for one with an explicit hold, by optimiser and form."""
    cases = {}
    kinds = {
        "SGD": partial(torch.optim.SGD, lr=1e-3, momentum=0.9),
        "Adam": partial(torch.optim.Adam, lr=1e-4, fused=True),
    }
    for (name, kind), form in itertools.product(kinds.items(), forms):
        for implicit in (False, True):
            if implicit and form != "diagonal" and name != "SGD":
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
    guard = anchorhold.Guard(
        model, "EWC", strength=1e-3, form=undamped(form), options=anchorhold.GuardOptions(implicit=implicit)
    )
    guard.consolidate([x])
    optimizer = kind(model.parameters())
    guard.attach(optimizer)

    def steps() -> None:
        for _ in range(5):
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(x), y).backward()
            optimizer.step()

    return steps


def table(found: Mapping[str, Any], scenario: str) -> str:
    """Return what was found as a page."""
    rows, ratios, by_rate = found["rows"], found["step ratios"], found.get("by rate", ())
    size = ", ".join(f"{name}={value}" for name, value in SIZES[scenario].items())
    named = "" if scenario == "permuted-digits" else f" --scenario {scenario}"
    searched = "the same seeds" if SEARCH_SEEDS[scenario] == SEEDS else "one other seed"
    lines = [
        f"# A hold after the step, and one in the gradient: {scenario}",
        "",
        (
            f"`python -m studies.implicit{named}`, torch {found['torch']}; {size}. EWC, no "
            f"re-initialisation, one learning rate for each optimiser{_said_of_rates(rows)}. Test accuracy over all "
            f"tasks after the last, in per cent, mean and standard error of {len(SEEDS)} seeds, at the best of "
            f"{len(STRENGTHS['diagonal'])} strengths a decade apart by validation with {searched}; then over how many "
            "decades validation accuracy is within a point of that best, between strengths by straight lines, and "
            "the validation accuracy at every strength (– where a run diverged, in the column of tests where all did)."
        ),
    ]
    for form, strengths in STRENGTHS.items():
        if not any(row["form"] == form for row in rows):
            continue
        heads = " | ".join(f"{c:g}" for c in strengths)
        lines += ["", f"| {form} | hold | best c | test | decades | {heads} |", "|---" * (5 + len(strengths)) + "|"]
        for row in rows:
            if row["form"] == form:
                cells = [f"{height:.1f}" if height is not None else "–" for _, height in row["validation"]]
                given = [
                    row["optimiser"],
                    hold_of(row),
                    f"{row['best']:g}",
                    shown(row["test"]),
                    f"{row['decades']:.1f}",
                ]
                lines.append(f"| {' | '.join([*given, *cells])} |")
    lines += rate_table(by_rate) if by_rate else []
    lines += [
        "",
        "A step with an implicit hold takes, for one with an explicit hold (784-400-400-10, 64 samples, a CPU):",
    ]
    lines += ["", *(f"- {name}: {ratio:.2f}" for name, ratio in ratios.items())]
    return "\n".join(lines) + "\n"


def _said_of_rates(rows: Sequence[Mapping[str, Any]]) -> str:
    """Return which rates were found first, where some were."""
    found = {row["optimiser"]: row["rate"] for row in rows if "rate" in row}
    said = ", ".join(f"{name} {rate:g}" for name, rate in found.items())
    return f" ({said}, which learn the first tasks best without a hold, by validation)" if found else ""


def hold_of(row: Mapping[str, Any]) -> str:
    """Return how a row's hold is applied, in a word."""
    return "implicit" if row["implicit"] else "explicit"


def shown(test: Sequence[float]) -> str:
    """Return test accuracies as their mean and standard error."""
    return f"{statistics.mean(test):.1f} ± {standard_error(test):.1f}" if test else "–"


def rate_table(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return the control, the best rate and strength of each way, and what the best strength keeps at each rate."""
    divided = " | ".join("the usual η" if by == 1 else f"η/{by}" for by in SLOWER)
    lines = [
        "",
        "## The learning rate searched too",
        "",
        (
            "`python -m studies.implicit --rates`. A smaller rate lets SGD bear a stronger explicit hold, so that "
            f"one rate might have been chosen against it. The same strengths at {len(SLOWER)} rates, the usual one "
            "and smaller ones, for as many steps; of all, the best rate and strength by validation, tested. Then the "
            "validation accuracy of the best strength at each rate, with that strength."
        ),
        "",
        f"| form | optimiser | hold | best η | best c | test | {divided} |",
        "|---" * (6 + len(SLOWER)) + "|",
    ]
    for row in rows:
        cells = []
        for _, pairs in row["validation"]:
            own = dict(pairs)
            best = best_of(own)
            cells.append("–" if own[best] is None else f"{own[best]:.1f} (c = {best:g})")
        given = [
            row["form"],
            row["optimiser"],
            hold_of(row),
            f"{row['rate']:g}",
            f"{row['best']:g}",
            shown(row["test"]),
        ]
        lines.append(f"| {' | '.join([*given, *cells])} |")
    return lines


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the study, and write its results."""
    parser = argparse.ArgumentParser(prog="python -m studies.implicit", description=__doc__)
    parser.add_argument("store", type=Path, help="where runs are kept")
    parser.add_argument("--scenario", choices=SIZES, default="permuted-digits")
    parser.add_argument("--data-dir", type=Path, help="the folder that holds MNIST and CIFAR")
    parser.add_argument("--device", help="what to train on; a GPU if there is one")
    parser.add_argument("--results", type=Path, default=Path("results"), help="where to write (default: %(default)s)")
    parser.add_argument("--quick", action="store_true", help="a rehearsal at a tiny size")
    parser.add_argument("--forms", nargs="+", choices=STRENGTHS, default=list(STRENGTHS), help="these alone (all)")
    parser.add_argument("--rates", action="store_true", help="search SGD's learning rates too, beside what was found")
    options = parser.parse_args(arguments)
    warnings.simplefilter("ignore", anchorhold.AnchorholdWarning)  # strengths that are too much are what is looked at
    store, run = Store(options.store), partial(execute, data_dir=options.data_dir, device=options.device)
    changes = QUICK if options.quick else {}
    name = "implicit" if options.scenario == "permuted-digits" else f"implicit-{options.scenario}"
    path = options.results / f"{name}.json"
    found: dict[str, Any] = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
    if options.rates and "rows" not in found:
        parser.error(f"--rates adds to what is in {path}, and there is nothing: run the same without it first.")
    if options.rates:
        new = [_told(rate_row(options.scenario, way, changes, store, run)) for way in rate_ways(options.forms)]
        found["by rate"] = beside(found.get("by rate", ()), new)
    else:
        rates = rates_of(options.scenario, changes, store, run)
        every = [
            way | ({"rate": rates[way["optimiser"]]} if way["optimiser"] in rates else {})
            for way in ways(options.forms)
        ]
        new = [_told(row_of(options.scenario, way, changes, store, run)) for way in every]
        found["rows"] = beside(found.get("rows", ()), new)
        sides = (8, 8, 4) if options.quick else (784, 400, 400, 10)
        ratios = step_ratios(2 if options.quick else 15, options.forms, sides=sides)
        found["step ratios"] = {**found.get("step ratios", {}), **ratios}
    on_gpu = torch.cuda.is_available() and options.device != "cpu"
    found["torch"] = torch.__version__ + (f", one {torch.cuda.get_device_name()}" if on_gpu else "")
    options.results.mkdir(parents=True, exist_ok=True)
    path.with_suffix(".md").write_text(table(found, options.scenario), encoding="utf-8")
    path.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")


def beside(known: Sequence[dict[str, Any]], new: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return new rows with those that are known of other forms, in the order of forms."""
    forms = {row["form"] for row in new}
    every = [*(row for row in known if row["form"] not in forms), *new]
    return sorted(every, key=lambda row: list(STRENGTHS).index(row["form"]))


def _told(row: dict[str, Any]) -> dict[str, Any]:
    print(json.dumps(row), flush=True)
    return row
