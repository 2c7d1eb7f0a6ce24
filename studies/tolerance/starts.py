"""Where a strength that follows a tolerance should begin: runs of few and of many steps, begun weakly and strongly.

Permuted digits, two tasks, as in ``digits.py``. ``python -m studies.tolerance.starts`` writes
results/tolerance-starts.md and .json.
"""

import itertools
from collections.abc import Iterator
from typing import Any

from torch import nn

from anchorhold import Tolerance
from benchmarks.undamped import undamped
from studies.tolerance.digits import Run, first_task, mean
from studies.tolerance.small_studies import run_study

COMMAND = "python -m studies.tolerance.starts"
STARTS = (1.0, 0.3, 0.1, 0.03, 0.01, 0.003)
STEPS = (60, 128, 600)
TOLERANCES = (0.01, 0.1)
SEEDS = range(3)


def rows(steps: tuple[int, ...] = STEPS, seeds: range = SEEDS) -> Iterator[dict[str, Any]]:
    """Yield what each form, number of steps, tolerance and start come to, over the seeds."""
    firsts = {seed: first_task(seed) for seed in seeds}
    for form, number, nats, start in itertools.product(("diagonal", "rotated"), steps, TOLERANCES, STARTS):
        ended = [_one(form, number, Tolerance(nats, start=start), seed, firsts[seed]) for seed in seeds]
        means = {name: mean([each[name] for each in ended]) for name in ended[0]}
        yield {"form": form, "steps": number, "tolerance": nats, "start": start, **means}


def _one(form: str, steps: int, tolerance: Tolerance, seed: int, first: nn.Module) -> dict[str, float]:
    run = Run(seed, "Adam", first, form=undamped(form), tolerance=tolerance)
    run.train(steps=steps)
    ended = run.judged()["kept"] / tolerance.nats
    return {"ended": ended, "accuracy": run.pulled_back(tolerance.nats)["accuracy"]}


def page(found: list[dict[str, Any]], where: dict[str, str]) -> str:
    """Return the page: a table for each form, a column for each start."""
    lines = ["# Where a strength that follows a tolerance should begin", ""]
    lines += [f"- {key}: {value}" for key, value in where.items()]
    lines += [
        "",
        (
            "The accuracy on the second of two tasks of permuted digits in per cent, after `pull_back()`, and how much "
            "was lost at the end of training in tolerances; Adam, three seeds, by `Tolerance(nats, start=…)`."
        ),
    ]
    for form in ("diagonal", "rotated"):
        lines += ["", f"## {form}", "", f"| steps | nats | {' | '.join(f'{start:g}' for start in STARTS)} |"]
        lines.append(f"|---|---{'|---' * len(STARTS)}|")
        own = [row for row in found if row["form"] == form]
        for steps, nats in sorted({(row["steps"], row["tolerance"]) for row in own}):
            here = {row["start"]: row for row in own if (row["steps"], row["tolerance"]) == (steps, nats)}
            cells = [f"{100 * here[start]['accuracy']:.1f} ({here[start]['ended']:.2g})" for start in STARTS]
            lines.append(f"| {steps} | {nats:g} | {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def main(arguments: list[str] | None = None) -> None:
    """Run all of it and write the page."""
    run_study(arguments, COMMAND, __doc__, "tolerance-starts", rows, lambda: rows((5,), range(1)), page)


if __name__ == "__main__":
    main()
