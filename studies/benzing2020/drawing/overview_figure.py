"""Every method on every benchmark as one picture: accuracy, forgetting, what is kept of old tasks, and time."""

import math
import textwrap
from collections.abc import Callable, Sequence
from typing import NamedTuple

from matplotlib.axes import Axes
from matplotlib.figure import Figure as Canvas
from matplotlib.ticker import EngFormatter, LogLocator, MaxNLocator, NullFormatter, NullLocator

from anchorhold_lab.analysis import Estimate
from anchorhold_lab.report import Figure, Table, Text, colour
from studies.benzing2020.kept_bytes import Kept

_CAPTION = (
    "Everything at a glance: a row of panels for each benchmark, a line for each method, the most accurate at the top; "
    "accuracy and forgetting with standard errors. Points of bounds, which keep all data or all networks, are hollow. "
    "What keeps nothing of old tasks has no point among the bytes. Seconds are of one run on whatever it was made, so "
    "that they can be compared within a device."
)
_DATA = ("benchmark", "method", "accuracy", "error", "forgetting", "error of it", "bytes kept", "seconds a run", "runs")
_PER_LINE = 0.17
"""Inches of height that a method takes."""
_AROUND = 0.9
"""Inches that a row of panels has beside its lines, for its title and its axes' words."""
LONGEST = 46
"""Characters of a method's name that stand in one line: what is longer is broken, and may reach into the next one's."""


class Standing(NamedTuple):
    """A method on a benchmark, as its runs came out."""

    benchmark: str
    method: str
    accuracy: Estimate
    """In per cent, as forgetting is."""
    forgetting: Estimate
    kept: Kept | None
    seconds: float
    is_bound: bool


class _Quantity(NamedTuple):
    """What one column of panels shows."""

    title: str
    of: Callable[[Standing], tuple[float, float] | None]
    """Where a method's point lies, and its error; ``None`` where it has none."""
    logarithmic: bool = False


_QUANTITIES = (
    _Quantity("accuracy, %", lambda each: (each.accuracy.mean, each.accuracy.error)),
    _Quantity("forgetting, %", lambda each: (each.forgetting.mean, each.forgetting.error)),
    _Quantity("kept of old tasks, bytes", lambda each: _point(each.kept.bytes if each.kept else 0), logarithmic=True),
    _Quantity("seconds a run", lambda each: _point(each.seconds), logarithmic=True),
)


def overview_figure(standings: Sequence[Standing]) -> Figure | Text:
    """Return four panels for each benchmark that has runs."""
    by_benchmark: dict[str, list[Standing]] = {}
    for standing in sorted(standings, key=lambda each: each.accuracy.mean):
        by_benchmark.setdefault(standing.benchmark, []).append(standing)
    if not by_benchmark:
        return Text("Not measured yet: no run of any method has finished.")
    ordered = [by_benchmark[name] for name in dict.fromkeys(each.benchmark for each in standings)]
    heights = [_AROUND + _PER_LINE * len(lines) for lines in ordered]

    def draw(canvas: Canvas) -> None:
        sizes = {"height_ratios": heights, "width_ratios": (3, 2, 2, 2)}
        grid = canvas.subplots(len(ordered), len(_QUANTITIES), squeeze=False, gridspec_kw=sizes)
        for row, lines in zip(grid, ordered, strict=True):
            for axes, quantity in zip(row, _QUANTITIES, strict=True):
                _draw(axes, lines, quantity)
            names = [textwrap.fill(each.method, LONGEST) for each in lines]
            row[0].set_yticks(range(len(lines)), names, fontsize=5.5, linespacing=0.8)
            row[0].set_title(lines[0].benchmark, loc="left")

    data = Table("overview-data", "The numbers of overview.", _DATA, tuple(map(_row, standings)))
    return Figure("overview", _CAPTION, draw, data, size=(11.0, sum(heights)))


def _draw(axes: Axes, lines: Sequence[Standing], quantity: _Quantity) -> None:
    for place, standing in enumerate(lines):
        found = quantity.of(standing)
        if found is None:
            continue
        shade = colour(standing.method)
        value, error = found
        if not math.isnan(error):
            axes.errorbar(value, place, xerr=error, fmt="none", ecolor=shade)
        axes.plot(value, place, "o", markersize=4, color=shade, fillstyle="none" if standing.is_bound else "full")
    if quantity.logarithmic:
        axes.set_xscale("log")
        low, high = axes.get_xlim()
        axes.xaxis.set_minor_formatter(NullFormatter())
        if high < 100 * low:  # where a logarithm has at most two numbers of its own
            axes.xaxis.set_major_locator(MaxNLocator(3) if high < 8 * low else LogLocator(subs=(1, 2, 5)))
            axes.xaxis.set_major_formatter(EngFormatter(sep=""))
            axes.xaxis.set_minor_locator(NullLocator())
    axes.set_xlabel(quantity.title)
    axes.set_ylim(-0.7, len(lines) - 0.3)
    axes.set_yticks(range(len(lines)), [""] * len(lines))


def _point(value: float) -> tuple[float, float] | None:
    """Return a number without an error; a logarithm has no place for nothing."""
    return (value, math.nan) if value > 0 else None


def _row(each: Standing) -> tuple[str | float | None, ...]:
    errors = [None if math.isnan(found.error) else found.error for found in (each.accuracy, each.forgetting)]
    kept = None if each.kept is None else each.kept.bytes
    means = each.accuracy.mean, errors[0], each.forgetting.mean, errors[1]
    return (each.benchmark, each.method, *means, kept, each.seconds, each.accuracy.count)
