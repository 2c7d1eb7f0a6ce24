"""What becomes of EWC where there is batch norm: Permuted MNIST, five tasks, 784-200-200-10 with a batch norm a layer.

``python -m studies.batch_norm STORE --data-dir DATA`` writes results/batch-norm.md. Running statistics go with the
new data unless they are frozen, or folded into the weights that are held (Lee et al. 2020, arXiv 2004.07507), for EWC
as a diagonal and in rotated coordinates. Each has as many strengths to choose from, on validation data. What is in the
store is not run again, so that several processes can share the work by ``--only``.
"""

import argparse
import itertools
import json
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch

from anchorhold_lab.analysis import estimate
from anchorhold_lab.experiments import Spec, Store, best_tried, execute, paper_spec
from benchmarks.undamped import unsaid

TREATED = {"as it comes": None, "freeze": "freeze", "fold": "fold"}
STRENGTHS = {"diagonal": (10.0, 50.0, 200.0, 1000.0, 5000.0), "rotated": (2.0, 10.0, 50.0, 200.0, 1000.0)}
SEARCH_SEEDS, SEEDS = (1000,), (0, 1, 2)
USUAL: dict[str, Any] = {
    "network": "mlp-batch-norm",
    "hidden": (200, 200),
    "tasks": 5,
    "epochs": 2,
    "reinitialise": False,
    "engine": "plain",
}
SAMPLES = 2000
QUICK = {"hidden": (8, 8), "epochs": 1, "tasks": 2}


def specs_of(treated: str, form: str, changes: Mapping[str, Any]) -> partial[Spec]:
    """Return what makes the specs of one way, given seed, strength and judge_by."""
    own: dict[str, Any] = {"form": form, "form_settings": unsaid(form), "batch_norm": TREATED[treated]}
    own["samples"] = 20 if changes else SAMPLES
    return partial(paper_spec, "permuted-mnist", "EWC", **{**USUAL, **own, **changes})


def fine_tuned(changes: Mapping[str, Any]) -> list[Spec]:
    """Return the runs without protection."""
    return [paper_spec("permuted-mnist", "fine-tune", seed=seed, **{**USUAL, **changes}) for seed in SEEDS]


def row(name: str, strength: float | None, runs: Sequence[Spec], store: Store) -> dict[str, Any]:
    """Return what runs of several seeds came to, in per cent."""
    found = [store.get(spec.id) for spec in runs]
    last = [[100 * accuracy for accuracy in result.matrix[-1]] for result in found if result is not None]
    average = estimate(sum(each) / len(each) for each in last)
    first, newest = (estimate(each[task] for each in last) for task in (0, -1))
    return {"way": name, "strength": strength, "average": average, "first": first, "last": newest}


def table(rows: Sequence[Mapping[str, Any]], changes: Mapping[str, Any]) -> str:
    """Return the rows as a page."""
    settings = {**USUAL, **changes}
    lines = [
        "# Permuted MNIST with batch norm",
        "",
        (
            f"`python -m studies.batch_norm`, torch {torch.__version__}. {settings['tasks']} tasks of "
            f"{settings['epochs']} epochs, hidden layers of {settings['hidden'][0]} with a batch norm each, Adam, no "
            f"re-initialisation, {SAMPLES:,} samples for the Fisher information. Accuracy after the last task, in per "
            f"cent, ± the standard error over {len(SEEDS)} seeds; each strength is the best of five for one other seed "
            "on validation data."
        ),
        "",
        "| running statistics | form | c | all tasks | the first | the last |",
        "|---|---|---|---|---|---|",
    ]
    for each in rows:
        cells = [f"{each[key].mean:.2f} ± {each[key].error:.2f}" for key in ("average", "first", "last")]
        treated, _, form = each["way"].partition(", ")
        strength = "" if each["strength"] is None else f"{each['strength']:g}"
        lines.append(f"| {treated} | {form} | {strength} | {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the study, and write its results."""
    parser = argparse.ArgumentParser(prog="python -m studies.batch_norm", description=__doc__)
    parser.add_argument("store", type=Path, help="where runs are kept")
    parser.add_argument("--data-dir", type=Path, help="the folder that holds MNIST")
    parser.add_argument("--results", type=Path, default=Path("results"), help="where to write (default: %(default)s)")
    parser.add_argument("--only", choices=TREATED, help="make these runs alone, and write nothing")
    parser.add_argument("--quick", action="store_true", help="a rehearsal at a tiny size")
    options = parser.parse_args(arguments)
    changes = QUICK if options.quick else {}
    store, run = Store(options.store), partial(execute, data_dir=options.data_dir)
    rows = []
    if not options.only:
        run(fine_tuned(changes), store)
        rows.append(row("as it comes, fine-tuning", None, fine_tuned(changes), store))
    for treated, form in itertools.product([options.only] if options.only else TREATED, STRENGTHS):
        make = specs_of(treated, form, changes)
        best = best_tried([{"strength": c} for c in STRENGTHS[form]], make, SEARCH_SEEDS, store, run)
        if best is None:
            raise SystemExit(f"{treated}, {form}: no strength is known; the same command goes on.")
        tests = [make(seed=seed, **best) for seed in SEEDS]
        run(tests, store)
        rows.append(row(f"{treated}, {form}", best["strength"], tests, store))
        print(json.dumps(rows[-1], default=vars), flush=True)
    if options.only:
        return
    (options.results / "batch-norm.md").write_text(table(rows, changes), encoding="utf-8")
    text = json.dumps(rows, indent=1, default=vars)  # estimates, by their fields
    (options.results / "batch-norm.json").write_text(text + "\n", encoding="utf-8")
