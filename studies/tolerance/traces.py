"""How the strength follows a tolerance, look by look: when it is met, has to go back, begins broken, is never touched.

``python -m studies.tolerance.traces`` learns the second of two tasks of permuted digits (see ``digits.py``) four
times, and draws docs/_static/tolerance-traces.png, for the guide on tolerances. Each look is at some of the kept
inputs; the cross at the end is all of them, after ``guard.pull_back()``.
"""

import argparse
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from torch import nn

import anchorhold
from anchorhold.retention.controller import TracePoint
from anchorhold.whole_files import whole_file
from anchorhold_lab.report.colours import colour
from anchorhold_lab.report.style import style
from studies.tolerance.digits import STEPS, Run, first_task

ON_A_SCALE = 1e-3
"""The least share of a tolerance that is drawn: before the first step nothing is lost, and its logarithm is −∞."""


def draw_anew(model: nn.Module) -> None:
    """Draw a network's weights anew, as re-initialisation before a task does."""
    torch.manual_seed(0)
    for layer in model.modules():
        if isinstance(layer, nn.Linear):
            layer.reset_parameters()


class Case(NamedTuple):
    """A run, and what it shows."""

    title: str
    form: str
    nats: float
    before: Callable[[nn.Module], Any] | None = None
    """What happens to the model before the second task."""


CASES = (
    Case("is met", "rotated", 0.1),
    Case("has to go back", "diagonal", 0.03),
    Case("begins broken (re-init)", "rotated", 0.1, draw_anew),
    Case("is never touched", "rotated", 1.0),
)


class Seen(NamedTuple):
    """What was seen of a case."""

    case: Case
    trace: Sequence[TracePoint]
    back: anchorhold.retention.PulledBack


def seen_in(case: Case, first: nn.Module) -> Seen:
    """Learn the second task."""
    run = Run(0, "Adam", first, tolerance=anchorhold.Tolerance(case.nats), form=case.form)
    if case.before is not None:
        case.before(run.model)
    run.train()
    return Seen(case, run.guard.control.trace, run.guard.pull_back())


def draw(found: Sequence[Seen], path: Path) -> None:
    """Write the picture: above what is lost, below the strength, a column for each case."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with style("light"):
        figure = Figure(figsize=(10.5, 4.6))
        grid = figure.subplots(2, len(found), sharex=True, sharey="row", squeeze=False)
        for (above, below), seen in zip(zip(*grid, strict=True), found, strict=True):
            _draw_case(above, below, seen)
        grid[0][0].set_ylabel("lost / tolerance")
        grid[1][0].set_ylabel("strength / first strength")
        with whole_file(path) as file:
            figure.savefig(file, format="png", dpi=150, metadata={"Software": None})


def _draw_case(above: Axes, below: Axes, seen: Seen) -> None:
    case, steps = seen.case, [point.step for point in seen.trace]
    shade = colour("rotated" if case.form == "rotated" else "EWC")
    above.set_title(f"{case.title}\n{case.form}, {case.nats:g} nats", fontsize="medium")
    above.plot(steps, [max(point.kl / case.nats, ON_A_SCALE) for point in seen.trace], color=shade)
    above.plot([STEPS], [max(seen.back.kl / case.nats, ON_A_SCALE)], "X", markersize=8, color=shade)
    above.axhline(1.0, color="#1f2328", linewidth=1.0, linestyle="--")
    below.plot(steps, [point.strength / seen.trace[0].strength for point in seen.trace], color=shade)
    below.set_xlabel("step of the new task")
    for axes in (above, below):
        axes.set_yscale("log")
        axes.grid(visible=True, axis="y")


def main(arguments: Sequence[str] | None = None) -> None:
    """Run and draw."""
    parser = argparse.ArgumentParser(prog="python -m studies.tolerance.traces", description=__doc__)
    picture = Path("docs/_static/tolerance-traces.png")
    parser.add_argument("--picture", type=Path, default=picture, help="(default: %(default)s)")
    options = parser.parse_args(arguments)
    torch.set_num_threads(1)
    first = first_task(0)
    found = []
    for case in CASES:
        found.append(seen_in(case, first))
        print(f"{case.title}: {found[-1].back}", flush=True)
    draw(found, options.picture)
    print(options.picture)


if __name__ == "__main__":
    main()
