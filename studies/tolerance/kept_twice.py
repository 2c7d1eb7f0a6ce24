"""A tolerance that is met on inputs which the model was trained on, or importance was measured from: what others lose.

Permuted digits, two tasks, as in ``digits.py``, with Adam. The importance is measured from 500 digits that the network
was trained on; 300 are kept: of those, of others that it was trained on, or of ones that it has not seen. What is lost
is judged by digits that it has not seen and that were not kept. ``python -m studies.tolerance.kept_twice`` writes
results/tolerance-kept-twice.md and .json.
"""

from collections.abc import Iterator
from typing import Any

import torch

from studies.tolerance.digits import KEPT, STEPS, Data, Run, first_task, mean
from studies.tolerance.small_studies import run_study

COMMAND = "python -m studies.tolerance.kept_twice"
FORMS = ("diagonal", "rotated")
TOLERANCES = (0.03, 0.1)
SEEDS = range(5)
MEASURED = 500
"""How many digits a run measures importance from: the first ones that it was trained on."""
SAME, TRAINED, UNSEEN = "those measured from", "others that it was trained on", "ones that it has not seen"


def rows(steps: int = STEPS, seeds: range = SEEDS) -> Iterator[dict[str, Any]]:
    """Yield what came out of each run, after ``pull_back()``.

    Args:
        steps: fewer of them, for a rehearsal.
        seeds: which to run.
    """
    for seed in seeds:
        first, data = first_task(seed), Data.of(seed)
        trained = data.train[0]
        kinds = {SAME: trained[:KEPT], TRAINED: trained[MEASURED : MEASURED + KEPT], UNSEEN: data.kept[0]}
        for form in FORMS:
            for nats in TOLERANCES:
                for kind, kept in kinds.items():
                    run = Run(seed, "Adam", first, kept=kept, form=form, tolerance=nats)
                    run.train(steps=steps)
                    found = run.pulled_back(nats)
                    lost = {"lost of kept": found["kept"], "lost of fresh": found["fresh"]}
                    about = {"form": form, "tolerance": nats, "kept": kind, "seed": seed}
                    yield about | lost | {"accuracy": found["accuracy"]}


def page(found: list[dict[str, Any]], where: dict[str, str]) -> str:
    """Return what fresh digits lost for each kind of kept ones, and every run."""
    lines = ["# Kept inputs that importance was measured from", ""]
    lines += [f"- {key}: {value}" for key, value in where.items()]
    lines += [
        "",
        (
            f"Two tasks of permuted digits, EWC, Adam, {len({row['seed'] for row in found})} seeds; importance is "
            f"measured from {MEASURED} digits that the network was trained on, and {KEPT} are kept. Each run ends with "
            "`guard.pull_back()`, so that kept digits have lost the tolerance or less; then what 497 digits lost that "
            "were neither trained on nor kept, over the tolerance: the mean over seeds, the least and the most. Kept "
            "ones over the tolerance stand beside it, and the accuracy on the second task in per cent."
        ),
        "",
        "| form | tolerance | kept | fresh / tolerance | kept / tolerance | new task |",
        "|---|---|---|---|---|---|",
    ]
    for form in FORMS:
        for nats in TOLERANCES:
            for kind in (SAME, TRAINED, UNSEEN):
                own = [row for row in found if (row["form"], row["tolerance"], row["kept"]) == (form, nats, kind)]
                if own:
                    lines.append(f"| {form} | {nats:g} | {kind} | {' | '.join(_cells(own))} |")
    lines += ["", "Over both forms and tolerances:", "", "| kept | runs | fresh / tolerance |", "|---|---|---|"]
    for kind in (SAME, TRAINED, UNSEEN):
        own = [row for row in found if row["kept"] == kind]
        if own:
            lines.append(f"| {kind} | {len(own)} | {_cells(own)[0]} |")
    return "\n".join(lines) + "\n"


def _cells(own: list[dict[str, Any]]) -> list[str]:
    fresh = [row["lost of fresh"] / row["tolerance"] for row in own]
    kept = mean([row["lost of kept"] / row["tolerance"] for row in own])
    accuracy = 100 * mean([row["accuracy"] for row in own])
    return [f"{mean(fresh):.2f} ({min(fresh):.2f} to {max(fresh):.2f})", f"{kept:.2f}", f"{accuracy:.1f}"]


def main(arguments: list[str] | None = None) -> None:
    """Run all of it and write the page."""
    torch.set_num_threads(1)
    run_study(arguments, COMMAND, __doc__, "tolerance-kept-twice", rows, lambda: rows(5, range(1)), page)


if __name__ == "__main__":
    main()
