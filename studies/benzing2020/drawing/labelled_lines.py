"""Panels whose lines have their names at their ends, for the few that a figure is about."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.ticker import MaxNLocator, NullLocator

from anchorhold_lab.analysis import Estimate
from anchorhold_lab.report import colour, ink
from studies.benzing2020.drawing.panels import Panel
from studies.benzing2020.drawing.task_columns import Table, each_task

_GAP = 0.085
"""The least distance between two names, as a share of the panel's height."""
_LEAST_SPAN = 2.0
"""The fewest points of accuracy that a panel shows: less looks like more than it is."""
_FEW = 12
"""Up to so many tasks, each has its mark."""


@dataclass(frozen=True)
class Level:
    """A value to compare lines with, and what it is: told above an end or below the middle, where lines leave room."""

    value: float
    says: str
    at: Literal["left", "middle", "right"] = "left"


def over_tasks(
    title: str,
    series: Mapping[str, Table],
    *,
    y_label: str,
    x_label: str = "tasks learned",
    may_leave: str | None = None,
    level: Level | None = None,
) -> Panel:
    """Return a line a series over the tasks, with a band of one standard error over the runs.

    Args:
        title: that of the panel.
        series: tables of one row a run, one column a task, by the names that stand at their lines.
        y_label: what is shown.
        x_label: what the tasks are counted for.
        may_leave: the series that may fall out of the panel, so that the others can be told apart; its name then says
            where it goes.
        level: a value to compare with.
    """
    found = {name: each_task(table) for name, table in series.items()}

    def draw(axes: Axes) -> None:
        tasks = max(map(len, found.values()))
        for name, estimates in found.items():
            learned = range(1, len(estimates) + 1)
            shade, (low, high) = colour(name), _bounds(estimates)
            axes.fill_between(learned, low, high, color=shade, alpha=0.2, linewidth=0)
            axes.plot(learned, [e.mean for e in estimates], color=shade, marker="" if tasks > _FEW else "o")
        axes.set_xlabel(x_label)
        axes.set_ylabel(y_label)
        axes.xaxis.set_major_locator(MaxNLocator(integer=True, steps=[1, 2, 5, 10] if tasks > _FEW else None))
        staying = [es for name, es in found.items() if name != may_leave] or list(found.values())
        _limit(axes, list(found.values()), level, staying)
        _show_level(axes, level)
        _name_lines(axes, {name: es[-1].mean for name, es in found.items()})

    rows = [(name, task, e.mean, e.error, e.count) for name, es in found.items() for task, e in enumerate(es, start=1)]
    return Panel(title, draw, tuple(rows))


def over_samples(
    title: str, series: Mapping[str, Mapping[int, Estimate]], *, y_label: str, level: Level | None = None
) -> Panel:
    """Return a line a series over numbers of samples, on a scale of ratios; a single point is named at its side."""

    def draw(axes: Axes) -> None:
        for name, points in series.items():
            samples, shade = sorted(points), colour(name)
            means = [points[number].mean for number in samples]
            low, high = _bounds([points[number] for number in samples])
            marks = {"marker": "o"} if len(points) > 1 else {"marker": "s", "mfc": mpl.rcParams["figure.facecolor"]}
            axes.vlines(samples, low, high, color=shade)
            axes.plot(samples, means, color=shade, **marks)
            if len(points) == 1:
                axes.annotate(name, (samples[0], means[0]), (8, -9), textcoords="offset points", color=shade)
        axes.set_xscale("log")
        ticks = sorted({number for points in series.values() for number in points})
        axes.set_xticks(ticks, [f"{number:,}" for number in ticks])
        axes.xaxis.set_minor_locator(NullLocator())
        axes.set_xlabel("samples that the Fisher information is measured on")
        axes.set_ylabel(y_label)
        _limit(axes, [list(points.values()) for points in series.values()], level)
        _show_level(axes, level)
        _name_lines(axes, {name: points[max(points)].mean for name, points in series.items() if len(points) > 1})

    rows = [
        (name, number, found.mean, found.error, found.count)
        for name, points in series.items()
        for number, found in sorted(points.items())
    ]
    return Panel(title, draw, tuple(rows))


def _bounds(estimates: Sequence[Estimate]) -> tuple[list[float], list[float]]:
    """Return one standard error below and above each mean; a single run has none."""
    errors = [0.0 if math.isnan(e.error) else e.error for e in estimates]
    low, high = ([e.mean + sign * error for e, error in zip(estimates, errors, strict=True)] for sign in (-1, 1))
    return low, high


def _limit(
    axes: Axes,
    shown: Sequence[Sequence[Estimate]],
    level: Level | None,
    staying: Sequence[Sequence[Estimate]] | None = None,
) -> None:
    """Let the axis reach over all that is shown, below over what is to stay, with a margin; accuracies end at 100."""
    levels = [level.value] if level else []
    low = min([value for estimates in staying or shown for value in _bounds(estimates)[0]] + levels)
    high = max([value for estimates in shown for value in _bounds(estimates)[1]] + levels)
    span = max(high - low, _LEAST_SPAN)
    axes.set_ylim(high - 1.12 * span, min(high + 0.12 * span, max(high, 100.0) + 0.03 * span))


def _show_level(axes: Axes, level: Level | None) -> None:
    if level is not None:
        axes.axhline(level.value, color=ink(), linewidth=0.9, linestyle=(0, (4, 3)))
        places = {"left": (0.01, "left", 4), "middle": (0.5, "center", -13), "right": (0.99, "right", 4)}
        place, ha, up = places[level.at]
        axes.annotate(
            level.says,
            (place, level.value),
            (0, up),
            xycoords=("axes fraction", "data"),
            textcoords="offset points",
            ha=ha,
            bbox={"facecolor": mpl.rcParams["figure.facecolor"], "edgecolor": "none", "alpha": 0.7, "pad": 0.5},
        )


def _name_lines(axes: Axes, ends: Mapping[str, float]) -> None:
    """Write each line's name to the right of its end, above each other where ends meet."""
    low, high = axes.get_ylim()
    below = -_GAP
    for number, name in enumerate(sorted(ends, key=lambda name: ends[name])):
        room = 1 - _GAP * (len(ends) - 1 - number)  # for those above
        place = below = min(max((ends[name] - low) / (high - low), below + _GAP, 0.0), room)
        says = f"{name}\n↓ {ends[name]:.0f} %" if ends[name] < low else name
        axes.text(1.02, place, says, color=colour(name), va="center", transform=axes.transAxes)
