"""Runs as one picture: its panels beside and beneath each other, and one colour for each method in all of them."""

import math
import os
import textwrap
from collections.abc import Callable, Sequence

from matplotlib.axes import Axes
from matplotlib.figure import Figure as Canvas
from matplotlib.lines import Line2D

from anchorhold.errors import ConfigurationError
from anchorhold.whole_files import write_whole
from anchorhold_lab.experiments.plots import run_panels
from anchorhold_lab.experiments.plots.methods import Method, methods_of
from anchorhold_lab.experiments.store.run_results import Result
from anchorhold_lab.report import Figure, label
from anchorhold_lab.report.colours import told_apart
from anchorhold_lab.report.pictures import drawn
from anchorhold_lab.user_paths import user_path

Draw = Callable[[Axes, Sequence[Method], run_panels.Looks], None]
ENDINGS = ("png", "pdf", "svg")
WHAT = ("accuracy", "forgetting", "trade-off", "strength", "following", "matrix")
"""What can be drawn."""
_ACROSS, _WIDTH, _HEIGHT = (3, 2), 3.9, 3.1
_LETTERS = 48
"""Of a label, that stand above one panel with its marker."""
_MARKERS = ("o", "s", "^", "D", "v", "P", "X", "<", ">", "*")


def plot_runs(results: Sequence[Result], path: str | os.PathLike[str], what: Sequence[str] = ()) -> list[str]:
    """Draw finished runs of one scenario into a file, and return what was drawn.

    Lines are means over seeds, with a standard error either way; of a method with several strengths they are of the
    one that is best by the accuracies that are drawn, and its name says so.

    Args:
        results: the runs.
        path: a PNG, PDF or SVG file, by its ending.
        what: some of ``"accuracy"``, ``"forgetting"``, ``"trade-off"``, ``"strength"``, ``"following"`` and
            ``"matrix"``; by default all that these runs have something to show for.
    """
    target = user_path(path)
    kind = target.suffix.lower().removeprefix(".")
    if kind not in ENDINGS:
        raise ConfigurationError(f"{target}: expected a file that ends with {', '.join('.' + e for e in ENDINGS)}.")
    methods = methods_of(results)
    possible = _possible(methods)
    for name in what:
        if name not in WHAT:
            raise ConfigurationError(f"{name!r} cannot be drawn; expected one of {', '.join(WHAT)}.")
        if name not in possible:
            raise ConfigurationError(f"{name!r} cannot be drawn of these runs: {_LACKING[name]}")
    chosen = [name for name in WHAT if name in (what or possible)]
    content = drawn(_figure(methods, chosen), "light", (kind,))[kind]
    try:
        write_whole(target, content)
    except OSError as error:
        raise ConfigurationError(
            f"{target} could not be written: {error.strerror or error}. Give another file."
        ) from error
    return chosen


_LACKING = {
    "forgetting": "with one task there is nothing to forget.",
    "trade-off": "with one task there is nothing to lose.",
    "strength": "no method has two strengths or more. `anchorhold-lab search` tries several.",
    "following": "none was looked at within tasks. The plain engine does, with --tolerance or --kept.",
}


def _possible(methods: Sequence[Method]) -> list[str]:
    """Return what there is to show."""
    found = ["accuracy", "matrix"]
    if all(len(run.matrix) > 1 for method in methods for setting in method.settings for run in setting.results):
        found += ["forgetting", "trade-off"]
    if any(sum(bool(setting.strength) for setting in method.settings) > 1 for method in methods):
        found.append("strength")
    if any(run_panels.is_traced(method.best) for method in methods):
        found.append("following")
    return found


def _figure(methods: Sequence[Method], chosen: Sequence[str]) -> Figure:
    names = [method.name for method in methods]
    looks: run_panels.Looks = {
        name: {"color": shade, "marker": marker}
        for (name, shade), marker in zip(told_apart(names).items(), _MARKERS, strict=False)
    }
    drawing: dict[str, list[Draw]] = {
        "accuracy": [run_panels.accuracy_over_tasks],
        "forgetting": [run_panels.forgetting_over_tasks],
        "trade-off": [run_panels.trade_off],
        "strength": [run_panels.strength_curves],
        "following": [run_panels.lost_as_it_went, run_panels.strength_as_it_went],
    }
    plain = [draw for name in chosen for draw in drawing.get(name, [])]
    grids = len(methods) if "matrix" in chosen else 0
    across = panels_across(len(plain), grids)
    rows = math.ceil(len(plain) / across) + math.ceil(grids / across)
    labels = [textwrap.fill(label(method.says), _LETTERS * across, break_on_hyphens=False) for method in methods]
    columns = legend_columns(labels, across)

    def draw(canvas: Canvas) -> None:
        axes = canvas.subplots(rows, across, squeeze=False)
        below = math.ceil(len(plain) / across)
        places = [*axes[:below].flat], [*axes[below:].flat]
        for own, place in zip(plain, places[0], strict=False):
            own(place, methods, looks)
        for method, place in zip(methods[:grids], places[1], strict=False):
            run_panels.matrix(place, method, looks)
        for place in [*places[0][len(plain) :], *places[1][grids:]]:
            place.set_axis_off()
        handles = [
            Line2D([], [], label=said, **looks[method.name]) for said, method in zip(labels, methods, strict=True)
        ]
        canvas.legend(
            handles=handles,
            loc="outside upper left",
            ncols=columns,
            title=_title(methods),
            alignment="left",
        )

    lines = max(said.count("\n") + 1 for said in labels) * math.ceil(len(labels) / columns)
    return Figure("runs", "", draw, size=(across * _WIDTH, rows * _HEIGHT + 0.3 * lines + 0.4))


def legend_columns(labels: Sequence[str], across: int) -> int:
    """Return how many labels stand beside each other, the longest of them whole, above so many panels."""
    longest = max(len(line) for each in labels for line in each.splitlines())
    return max(1, min(len(labels), across, across * _LETTERS // longest))


def panels_across(plain: int, grids: int) -> int:
    """Return how many panels stand beside each other: as many as leave the fewest places empty, of equals the more."""
    choices = [across for across in _ACROSS if across <= max(plain, grids)] or [1]
    return min(choices, key=lambda across: -plain % across + -grids % across)


def _title(methods: Sequence[Method]) -> str:
    runs = [run for method in methods for setting in method.settings for run in setting.results]
    spec, seeds = runs[0].spec, {len(setting.results) for method in methods for setting in method.settings}
    counted = f"{min(seeds)} to {max(seeds)}" if len(seeds) > 1 else f"{max(seeds)}"
    return f"{spec.scenario}, {spec.judge_by} samples, {counted} seed{'s' * (max(seeds) > 1)} each"
