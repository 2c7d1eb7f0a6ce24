"""What is drawn of runs, each on axes of its own: means over seeds, with one standard error either way."""

import math
import textwrap
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullFormatter

from anchorhold_lab.analysis.repetitions import Estimate, estimate
from anchorhold_lab.experiments.plots.methods import Method, Setting
from anchorhold_lab.experiments.store.run_results import Result
from anchorhold_lab.training.metrics import average_accuracies, forgetting, learned_later

Looks = Mapping[str, Mapping[str, Any]]
"""How each method is drawn, by its name: colour and marker."""
_TITLE = 42
"""Letters of a title that stand above one panel in a line."""
_FEW = 12
"""Up to so many tasks, numbers stand in a matrix."""
_TWO_DECADES = 100.0
_LEAST = 1e-5
"""What is drawn on a scale of ratios: before a first step nothing is lost, and rounding is not worth a decade."""


def accuracy_over_tasks(axes: Axes, methods: Sequence[Method], looks: Looks) -> None:
    """Draw the mean accuracy over the tasks learned so far, after each."""
    _over_tasks(axes, methods, looks, lambda run: [100 * mean for mean in average_accuracies(run.matrix)], 1)
    axes.set_title("Accuracy over tasks")
    axes.set_ylabel("% of the tasks learned so far")


def forgetting_over_tasks(axes: Axes, methods: Sequence[Method], looks: Looks) -> None:
    """Draw how far accuracy on earlier tasks has fallen from its best, after each task."""

    def fallen(run: Result) -> list[float]:
        return [100 * forgetting(run.matrix[:learned]) for learned in range(2, len(run.matrix) + 1)]

    _over_tasks(axes, methods, looks, fallen, 2)
    axes.set_title("Forgetting")
    axes.set_ylabel("points lost of earlier tasks")


def trade_off(axes: Axes, methods: Sequence[Method], looks: Looks) -> None:
    """Draw what was learned of new tasks against what was lost of old ones, a point for each strength."""
    for number, method in enumerate(methods):
        points = [
            (
                setting.over_seeds(lambda run: 100 * run.forgetting),
                setting.over_seeds(lambda run: 100 * learned_later(run.matrix)),
            )
            for setting in method.settings
        ]
        lost, learned = zip(*points, strict=True)
        axes.errorbar(
            [each.mean for each in lost],
            [each.mean for each in learned],
            xerr=_errors(lost),
            yerr=_errors(learned),
            elinewidth=0.8,
            alpha=0.9,
            **looks[method.name],
        )
        # The weakest and the strongest are named, every other method's below its point, where they may meet.
        beside = (4, -9 if number % 2 else 4)
        for place in (0, -1) if len(points) > 1 else ():
            where, says = (lost[place].mean, learned[place].mean), method.settings[place].says
            style = {"fontsize": 7, "color": looks[method.name]["color"]}
            axes.annotate(says, where, beside, textcoords="offset points", **style)
    axes.set_title("What was learned, and what was lost")
    axes.set_xlabel("lost: points of earlier tasks (← better)")
    axes.set_ylabel("learned: % of each new task (better →)")
    axes.grid(visible=True, axis="both")
    low, high = axes.get_xlim()
    axes.set_xlim(min(low, -0.03 * high), high)  # so that what has lost nothing has its place


def strength_curves(axes: Axes, methods: Sequence[Method], looks: Looks) -> None:
    """Draw the accuracy over all tasks at the end, against the strength c."""
    for method in methods:
        known = [(setting.strength, setting) for setting in method.settings if setting.strength]
        found = [setting.over_seeds(lambda run: 100 * run.average_accuracy) for _, setting in known]
        if known:
            strengths = [c for c, _ in known]
            axes.errorbar(strengths, [each.mean for each in found], yerr=_errors(found), **looks[method.name])
        else:  # without any strength: a level to compare with
            end = method.best.over_seeds(lambda run: 100 * run.average_accuracy).mean
            axes.axhline(end, color=looks[method.name]["color"], linewidth=1.0, linestyle=(0, (4, 3)))
    axes.set_xscale("log")
    _plain_numbers(axes.xaxis)
    axes.set_title("Strength")
    axes.set_xlabel("strength c (dashed: what has none)")
    axes.set_ylabel("% of all tasks at the end")


def lost_as_it_went(axes: Axes, methods: Sequence[Method], looks: Looks) -> None:
    """Draw what was lost of the worst kept task, look by look, beside the tolerance; one seed of each method."""
    for method, run, steps in _as_it_went(axes, methods, looks, lambda point: point.kl):
        tolerances = [noted.tolerance or math.nan for noted in run.retention for _ in noted.trace]
        if run.spec.tolerance is not None:
            axes.plot(steps, tolerances, color=looks[method.name]["color"], linewidth=1.0, linestyle=(0, (4, 3)))
    axes.set_title("Lost as it went (dashed: the tolerance)")
    axes.set_ylabel("KL of the worst task, nats")


def strength_as_it_went(axes: Axes, methods: Sequence[Method], looks: Looks) -> None:
    """Draw the strength at each look; one seed of each method."""
    _as_it_went(axes, methods, looks, lambda point: point.strength)
    axes.set_title("Strength as it went")
    axes.set_ylabel("c")


def matrix(axes: Axes, method: Method, looks: Looks) -> None:
    """Draw the accuracy on each task after each: rows are tasks learned, columns the tasks that were asked about."""
    runs = method.best.results
    tasks = len(runs[0].matrix)
    means = [[100 * estimate(run.matrix[i][j] for run in runs).mean for j in range(tasks)] for i in range(tasks)]
    seen = [[mean if j <= i else math.nan for j, mean in enumerate(row)] for i, row in enumerate(means)]
    axes.imshow(seen, vmin=0, vmax=100, cmap="viridis")
    for i, row in enumerate(seen if tasks <= _FEW else []):
        for j, mean in enumerate(row[: i + 1]):
            axes.text(
                j, i, f"{mean:.0f}", ha="center", va="center", fontsize=7, color="white" if mean < 60 else "black"
            )
    axes.set_title(
        textwrap.fill(method.says, _TITLE, break_on_hyphens=False), color=looks[method.name]["color"], fontsize=8
    )
    axes.grid(visible=False)
    ticks = range(tasks) if tasks <= _FEW else range(0, tasks, max(1, tasks // 5))
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_ticks(list(ticks), [str(task + 1) for task in ticks])
    axes.set_xlabel("% on task")
    axes.set_ylabel("after task")


def _over_tasks(
    axes: Axes, methods: Sequence[Method], looks: Looks, values: Callable[[Result], list[float]], first: int
) -> None:
    for method in methods:
        columns = zip(*(values(run) for run in method.best.results), strict=True)
        found = [estimate(column) for column in columns]
        learned, means, errors = range(first, first + len(found)), [each.mean for each in found], _errors(found)
        low, high = ([m + sign * e for m, e in zip(means, errors, strict=True)] for sign in (-1, 1))
        axes.fill_between(learned, low, high, color=looks[method.name]["color"], alpha=0.15, linewidth=0)
        axes.plot(learned, means, **looks[method.name])
    axes.set_xlabel("tasks learned")
    axes.xaxis.set_major_locator(MaxNLocator(integer=True, min_n_ticks=1))


def _as_it_went(
    axes: Axes, methods: Sequence[Method], looks: Looks, value: Callable[..., float]
) -> list[tuple[Method, Result, list[int]]]:
    """Draw a value at each look within tasks, and return whose it is, with the steps of the looks."""
    drawn = []
    for method in methods:
        if is_traced(method.best):
            run = method.best.results[0]
            steps, values = _along(run, value)
            axes.plot(steps, values, **{**looks[method.name], "marker": ""})
            drawn.append((method, run, steps))
    axes.set_yscale("log")
    _plain_numbers(axes.yaxis)
    axes.set_xlabel("steps, counted on over tasks")
    return drawn


def _plain_numbers(axis: Axis) -> None:
    """Write powers of ten as numbers, and between them 2 and 5 where there are few: all of them would overlap."""
    low, high = axis.get_view_interval()
    axis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0) if high < _TWO_DECADES * low else (1.0,)))
    axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axis.set_minor_formatter(NullFormatter())


def _errors(found: Sequence[Estimate]) -> list[float]:
    """Return standard errors; a single run has none to show."""
    return [0.0 if math.isnan(each.error) else each.error for each in found]


def is_traced(setting: Setting) -> bool:
    """Whether runs were looked at within tasks."""
    return any(noted.trace for noted in setting.results[0].retention)


def _along(run: Result, value: Callable[..., float]) -> tuple[list[int], list[float]]:
    """Return steps counted over all tasks that have a trace, and a value at each; gaps are steps without a look."""
    steps: list[int] = []
    values: list[float] = []
    before = 0
    for noted in run.retention:
        steps += [before + point.step for point in noted.trace]
        values += [found if (found := value(point)) > _LEAST else math.nan for point in noted.trace]
        before = steps[-1] if steps else 0
    return steps, values
