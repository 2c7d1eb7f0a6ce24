"""Figures made of panels, each with the numbers that it shows; a panel whose runs are missing says so."""

import itertools
import textwrap
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure as Canvas
from matplotlib.ticker import MaxNLocator
from numpy.typing import NDArray

from anchorhold_lab.analysis import Estimate
from anchorhold_lab.report import Cell, Figure, Table, colour, ink, label
from studies.benzing2020 import authors_data
from studies.benzing2020.drawing.task_columns import Table as Measurements
from studies.benzing2020.drawing.task_columns import correlations, each_task
from studies.benzing2020.findings import NotMeasuredError, Results
from studies.benzing2020.needed_runs import correlation_runs
from studies.benzing2020.presets import Benchmark

# Lines that lie on each other, or have one measure's colour under several conditions, are told apart by their marks.
_MARKS: tuple[dict[str, Any], ...] = (
    {"marker": "o", "linestyle": "-"},
    {"marker": "s", "linestyle": "--", "markerfacecolor": "none", "markersize": 8},
    {"marker": "^", "linestyle": ":", "markerfacecolor": "none", "markersize": 8},
    {"marker": "D", "linestyle": "-.", "markerfacecolor": "none"},
    {"marker": "x", "linestyle": (0, (1, 3)), "markersize": 8},
)
_MANY_LINES = 5
_REASON_WIDTH = 32
"""Characters in a line of why a panel is missing, so that it stays in its place."""
_COLUMNS = ("panel", "series", "at", "mean", "error", "runs")


@dataclass(frozen=True)
class Panel:
    """A part of a figure."""

    title: str
    draw: Callable[[Axes], None]
    rows: tuple[tuple[Cell, ...], ...] = ()
    """Its numbers: series, where along the horizontal axis, mean, error, runs."""


def panel_or_reason(title: str, make: Callable[[], Panel]) -> Panel:
    """Return a panel; where something has not been measured yet, one that says so."""
    try:
        return make()
    except NotMeasuredError as error:
        reason = str(error)

    def draw(axes: Axes) -> None:
        axes.set_axis_off()
        said = "\n".join(["not measured:", *textwrap.wrap(reason, _REASON_WIDTH, break_on_hyphens=False)])
        words = axes.text(0.5, 0.5, said, ha="center", va="center", transform=axes.transAxes)
        words.set_in_layout(False)  # or the panels beside it would make room for them

    return Panel(title, draw)


def lines_over_tasks(
    title: str,
    series: Mapping[str, Measurements],
    *,
    y_label: str,
    first: int = 1,
    theirs: authors_data.Series | None = None,
) -> Panel:
    """Return one line a series over the tasks from ``first`` on, with standard errors over the runs as bars.

    What the authors' own data say stands beside it as stars, from their first task on.
    """
    found = {name: each_task(table) for name, table in series.items()}
    beside = _from_task(theirs or {}, first)

    def draw(axes: Axes) -> None:
        _lines(axes, found, first)
        _stars(axes, beside)
        axes.set_ylabel(y_label)
        low, high = axes.get_ylim()
        # From 0, so that heights can be compared; with room above for the legend.
        axes.set_ylim(min(0.0, low), high + 0.35 * (high - min(0.0, low)))
        axes.legend(loc="upper center", ncols=2)

    return Panel(title, draw, (*_rows(found, first), *_their_rows(beside)))


def correlations_over_tasks(
    title: str, series: Mapping[str, Measurements], *, y_label: str, theirs: authors_data.Series | None = None
) -> Panel:
    """Return one line of correlations a series, likewise."""
    found = {name: each_task(table) for name, table in series.items()}
    beside = _from_task(theirs or {}, 1)

    def draw(axes: Axes) -> None:
        _lines(axes, found)
        _stars(axes, beside)
        axes.set_ylabel(y_label)
        # From 0, so that panels can be compared, and the legend has room below high ones.
        axes.set_ylim(min(0.0, axes.get_ylim()[0]), 1.04)
        # Many entries in two columns, which leave the height to the lines.
        axes.legend(loc="best", ncols=1 if len(found) < _MANY_LINES else 2)

    return Panel(title, draw, (*_rows(found), *_their_rows(beside)))


def authors_series(
    results: Results, of: Mapping[Benchmark, authors_data.Series], benchmark: Benchmark
) -> authors_data.Series:
    """Return what the authors' own data say; nothing where their benchmarks are not played."""
    return of.get(benchmark, {}) if results.preset.follows_the_paper else {}


def _from_task(theirs: authors_data.Series, first: int) -> dict[str, dict[int, float]]:
    return {
        name: {task: value for task, value in enumerate(values, start=1) if task >= first}
        for name, values in theirs.items()
    }


def _stars(axes: Axes, theirs: Mapping[str, Mapping[int, float]]) -> None:
    """Draw the authors' data: their colours are the measures', and one entry of the legend serves for all."""
    star: dict[str, Any] = {"linestyle": "none", "marker": "*", "markersize": 7, "markeredgewidth": 0.6}
    for name, values in theirs.items():
        shade = colour(name.partition(",")[0])
        axes.plot(list(values), list(values.values()), color=shade, markeredgecolor=ink(), **star)
    if any(theirs.values()):
        axes.plot([], [], color="none", markeredgecolor=ink(), label=authors_data.NAMED, **star)


def _their_rows(theirs: Mapping[str, Mapping[int, float]]) -> tuple[tuple[Cell, ...], ...]:
    return tuple(
        (f"{name}, {authors_data.NAMED}", task, value, None, None)
        for name, values in theirs.items()
        for task, value in values.items()
    )


def _lines(axes: Axes, found: Mapping[str, Sequence[Estimate]], first: int = 1) -> None:
    for (name, estimates), marks in zip(found.items(), itertools.cycle(_MARKS), strict=False):
        tasks, shade = np.arange(first, first + len(estimates)), colour(name.partition(",")[0])
        means = [e.mean for e in estimates]
        errors = [0.0 if np.isnan(e.error) else e.error for e in estimates]
        axes.plot(tasks, means, label=label(name), color=shade, **marks)
        # Apart from the line, so that the legend shows its mark alone.
        axes.errorbar(tasks, means, errors, fmt="none", ecolor=shade)
    axes.set_xlabel("task")
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))


def _rows(found: Mapping[str, Sequence[Estimate]], first: int = 1) -> tuple[tuple[Cell, ...], ...]:
    return tuple(
        (name, task, e.mean, e.error, e.count) for name, es in found.items() for task, e in enumerate(es, start=first)
    )


def bars(
    title: str,
    series: Mapping[str, NDArray[np.float64]],
    *,
    y_label: str,
    theirs: Mapping[str, float] | None = None,
) -> Panel:
    """Return one bar a series: the mean of its runs, with the standard error, and a star for the authors' own data."""
    found = {name: each_task(np.asarray(values).reshape(-1, 1))[0] for name, values in series.items()}
    beside = {name: value for name, value in (theirs or {}).items() if name in found}

    def draw(axes: Axes) -> None:
        for place, (name, e) in enumerate(found.items()):
            error = 0.0 if np.isnan(e.error) else e.error
            axes.bar(place, e.mean, yerr=error, ecolor=ink(), color=colour(name), width=0.7)
        _stars(axes, {name: {list(found).index(name): value} for name, value in beside.items()})
        if beside:
            axes.legend()
        axes.set_xticks(range(len(found)), [label(name).replace(" ", "\n", 1) for name in found])
        axes.set_ylabel(y_label)

    rows = [(name, None, e.mean, e.error, e.count) for name, e in found.items()]
    others = [(f"{name}, {authors_data.NAMED}", None, value, None, None) for name, value in beside.items()]
    return Panel(title, draw, (*rows, *others))


def cloud(
    title: str, x: tuple[str, NDArray[np.float32]], y: tuple[str, NDArray[np.float32]], *, y_note: str = ""
) -> Panel:
    """Return one point a weight: two importances against each other."""
    (x_name, across), (y_name, up) = x, y

    correlation = float(np.corrcoef(across, up)[0, 1]) if len(across) > 1 else float("nan")

    def draw(axes: Axes) -> None:
        axes.text(0.04, 0.94, f"r = {correlation:.3f}", va="top", transform=axes.transAxes)
        axes.scatter(across, up, s=2, alpha=0.25, linewidths=0, color=colour(y_name), rasterized=True)
        axes.xaxis.set_major_locator(MaxNLocator(4, steps=[1, 2, 5, 10]))
        axes.set_xlabel(label(x_name))
        axes.set_ylabel(label(y_name) + y_note)
        axes.axhline(0, linewidth=0.6, color="grey")

    return Panel(title, draw, ((f"{y_name} with {x_name}, {len(across)} weights", None, correlation, None, 1),))


def figure_of(
    name: str, caption: str, panels: Sequence[Panel], *, columns: int, size: tuple[float, float] | None = None
) -> Figure:
    """Return panels as one figure, with their numbers as its data."""
    lines = -(-len(panels) // columns)

    def draw(canvas: Canvas) -> None:
        grid = canvas.subplots(lines, columns, squeeze=False).flatten()
        for axes, panel in zip(grid, panels, strict=False):
            panel.draw(axes)
            axes.set_title(panel.title)
        for axes in grid[len(panels) :]:
            axes.set_axis_off()

    rows = [(panel.title, *row) for panel in panels for row in panel.rows]
    data = Table(f"{name}-data", f"The numbers of {name}.", _COLUMNS, tuple(rows)) if rows else None
    return Figure(name, caption, draw, data, size=size or (3.4 * columns, 2.9 * lines))


def correlation_panel(
    results: Results,
    benchmark: Benchmark,
    measure: str,
    others: Sequence[str],
    *,
    called: str,
    theirs: authors_data.Series | None = None,
) -> Panel:
    """Return a line for each of the others; ``called`` is what the axis calls the measure."""
    title = results.preset.stages[benchmark].title
    return panel_or_reason(
        title,
        lambda: correlations_over_tasks(
            title,
            {name: correlations(results, benchmark, measure, name) for name in others},
            y_label=f"correlation with {called}",
            theirs=theirs,
        ),
    )


def scatter_panel(results: Results, benchmark: Benchmark, x: str, y: str, *, raw: bool = False) -> Panel:
    """Return two measures against each other after the benchmark's first task."""
    title = f"{results.preset.stages[benchmark].title}, task 1"

    def make() -> Panel:
        seen = results.observed(correlation_runs(results.preset, benchmark), "scatter")[0]
        weights = seen["raw" if raw else "tasks"]["0"]
        note = " before rescaling" if raw else ""
        return cloud(title, (x, _array(weights[x])), (y, _array(weights[y])), y_note=note)

    return panel_or_reason(title, make)


WITHOUT_WEIGHTS = " The scatter plots of single weights are left out: the store lacks what the runs saw of these."


def lacks_weights(results: Results, benchmark: Benchmark) -> bool:
    """Whether scatter plots have no place: their runs have finished, and the store is one that was kept small."""
    specs = correlation_runs(results.preset, benchmark)
    try:
        return bool(results.finished(specs)) and not results.observed(specs, "scatter")
    except NotMeasuredError:
        return True


def shown_weights(results: Results, benchmark: Benchmark) -> str:
    """Return how many weights a scatter plot shows, for its caption."""
    try:
        seen = results.observed(correlation_runs(results.preset, benchmark), "scatter")[0]
    except NotMeasuredError:
        return "some"
    return f"{len(_array(seen['tasks']['0']['SOS'])):,}"


def _array(tensor: object) -> NDArray[np.float32]:
    return np.asarray(tensor, dtype=np.float32)
