"""What α is for, which the paper leaves open: SOS at large batches with averages that reach less far, and other rates.

Every cell has a strength of its own, from a search on validation data; what follows from them is said by a rule.
"""

import dataclasses
import math
from collections.abc import Iterable, Sequence

from anchorhold_lab.analysis import Estimate
from anchorhold_lab.experiments import Spec
from anchorhold_lab.report import Cell, Item, Measured, Table, Text
from studies.benzing2020.algorithms import ALGORITHMS, WINDOWS, Algorithm
from studies.benzing2020.claims.left_open.window import finding, reading
from studies.benzing2020.drawing.over_categories import over_categories
from studies.benzing2020.drawing.panels import Panel, figure_of, panel_or_reason
from studies.benzing2020.drawing.task_columns import each_task
from studies.benzing2020.findings import NotMeasuredError, Results
from studies.benzing2020.item import PaperItem
from studies.benzing2020.needed_runs import (
    AVERAGES,
    accuracy_runs,
    average_settings,
    large_batch_rates,
    reading_runs,
    rows_of_runs,
)
from studies.benzing2020.presets import BENCHMARKS, Benchmark, Preset

# An item for each benchmark, its cells in the order of worth, for those whose time ends before all is made.
_CELLS = {
    benchmark: tuple(
        dataclasses.replace(algorithm, benchmarks=(benchmark,))
        for algorithm in (ALGORITHMS["SOS(2048)"], ALGORITHMS["SOS(2048, α=0)"], *WINDOWS)
        if benchmark in algorithm.benchmarks
    )
    for benchmark in BENCHMARKS
}
_RATES = ("its rate", "another rate")
_ACCURACIES = (
    "What α is for, {title}: SOS with batches of {batch} and averages that reach less far back, "
    "with α and without, at two learning rates. Average accuracy after the last task in per cent; each line has a "
    "strength c of its own, found on validation data{but}."
)
_READINGS = (
    "How near √v comes to √Fisher: Pearson correlations over all protected weights after the first task, in runs with "
    "large batches in which all averages watch; √Fisher from {samples} samples, {repetitions} repetitions."
)
_FIGURE = (
    "The same accuracies: how far the average reaches, with α and without, at rates of {rates}; with standard errors."
)


def runs(preset: Preset, benchmark: Benchmark) -> list[Spec]:
    """Return what is read off, which is short, and the runs of all cells."""
    readings = [spec for rate in _RATES for spec in reading_runs(preset, benchmark, rate)]
    # A search may find the strength that the paper has, and then two cells share their runs.
    return list({spec.id: spec for spec in (*readings, *rows_of_runs(preset, _CELLS[benchmark]))}.values())


def draw(results: Results, benchmark: Benchmark) -> Sequence[Item]:
    """Return what was found, the accuracies of all cells as a table and as a figure, and the correlations."""
    rates = _numbers(large_batch_rates(results.preset, benchmark).values())
    panel = _panel(results, benchmark)
    name = f"window-{benchmark.lower()}"
    return [
        Text(_found(results, benchmark)),
        _table(f"{name}-accuracies", results, benchmark),
        figure_of(name, _FIGURE.format(rates=rates), [panel], columns=1, size=(7.4, 3.4)),
        _readings(f"{name}-readings", results, benchmark),
    ]


def _found(results: Results, benchmark: Benchmark) -> str:
    title = results.preset.stages[benchmark].title
    try:
        found = finding(results, benchmark)
        said = f"What α is for on {title}: {found.verdict}. {found.says}"
    except NotMeasuredError as error:
        said = f"What α is for on {title}. Not measured yet: {error}."
    return said + _said_of_readings(results, benchmark)


def _said_of_readings(results: Results, benchmark: Benchmark) -> str:
    """Say how near √v comes to √Fisher, where that has been read off."""
    compared = (("long window", 0.0), ("long window", 1.0), ("tied window", 0.0))
    cells = [_reading(results, benchmark, "its rate", average, alpha) for average, alpha in compared]
    known = [cell for cell in cells if cell is not None]
    if len(known) < len(compared):
        return ""
    plain, with_alpha, tied = (f"{cell.mean:.3f}" for cell in known)
    return (
        f" After the first task, √v has a correlation with √Fisher of {plain} without α, {with_alpha} with it, and "
        f"{tied} without it but with a window tied to the task's length."
    )


def _parts(algorithm: Algorithm) -> tuple[str, float, str]:
    """Return a cell's average, α and rate, by their names."""
    parts = algorithm.variant.split(", ")
    average = next((name for name in AVERAGES if name in parts), "long window")
    return average, 0.0 if "α = 0" in parts else 1.0, _RATES["another rate" in parts]


def described(preset: Preset, benchmark: Benchmark, average: str) -> str:
    """Return an average in a preset's own numbers."""
    settings = average_settings(preset, benchmark, average)
    if "window" in settings:
        return f"the last {100 * settings['window']:g} % of the task"
    beta2 = f"β₂ = {settings.get('beta2', 0.999):g}"
    return f"{beta2}, first {settings['skip']} steps left out" if "skip" in settings else beta2


def _numbers(given: Iterable[float]) -> str:
    return " and ".join(f"{number:g}" for number in given)


def _table(name: str, results: Results, benchmark: Benchmark) -> Table:
    preset, rows = results.preset, []
    for algorithm in _CELLS[benchmark]:
        average, alpha, rate = _parts(algorithm)
        value = large_batch_rates(preset, benchmark)[rate]
        searched = ", c searched for" if algorithm.variant == "large batch, long window" else ""
        line: list[Cell] = [f"{described(preset, benchmark, average)}; α = {alpha:g}, rate {value:g}{searched}"]
        specs = accuracy_runs(preset, benchmark, algorithm)
        found = _accuracy(results, benchmark, algorithm)
        if found is None:
            rows.append((*line, None, None, None))
        else:
            error = None if math.isnan(found.error) else found.error
            rows.append((*line, Measured(found.mean, error, decimals=2), specs[0].strength, found.count))
    spec = preset.spec(benchmark, "SOS", "large batch")
    caption = _ACCURACIES.format(
        title=preset.stages[benchmark].title,
        batch=spec.settings.batch_size,
        but=", but for the first, which is the paper's" if preset.follows_the_paper else " beforehand",
    )
    return Table(name, caption, ("average", "accuracy", "c", "runs"), tuple(rows))


def _accuracy(results: Results, benchmark: Benchmark, algorithm: Algorithm) -> Estimate | None:
    if not accuracy_runs(results.preset, benchmark, algorithm) or not results.accuracies(benchmark, algorithm.name):
        return None
    return results.accuracy(benchmark, algorithm.name)


def _panel(results: Results, benchmark: Benchmark) -> Panel:
    preset, title = results.preset, results.preset.stages[benchmark].title

    def make() -> Panel:
        series: dict[str, dict[str, Estimate]] = {}
        for average in AVERAGES:
            for algorithm in _CELLS[benchmark]:
                own, alpha, rate = _parts(algorithm)
                found = _accuracy(results, benchmark, algorithm) if own == average else None
                if found is not None:
                    name = f"α = {alpha:g}, rate {large_batch_rates(preset, benchmark)[rate]:g}"
                    series.setdefault(name, {})[described(preset, benchmark, average)] = found
        if not series:
            raise NotMeasuredError(f"no run of SOS with large batches on {benchmark} has finished")
        order = [described(preset, benchmark, average) for average in AVERAGES]
        return over_categories(title, series, order, y_label="accuracy, %")

    return panel_or_reason(title, make)


def _readings(name: str, results: Results, benchmark: Benchmark) -> Table:
    preset = results.preset
    rates = large_batch_rates(preset, benchmark)
    rows: list[tuple[Cell, ...]] = []
    for average in AVERAGES:
        for alpha in (0.0, 1.0):
            found = [_reading(results, benchmark, rate, average, alpha) for rate in rates]
            rows.append((f"{described(preset, benchmark, average)}; α = {alpha:g}", *found))
    samples = f"{preset.stages[benchmark].many_samples:,}"
    caption = _READINGS.format(samples=samples, repetitions=preset.repetitions)
    return Table(name, caption, ("average", *(f"rate {rate:g}" for rate in rates.values())), tuple(rows))


def _reading(results: Results, benchmark: Benchmark, rate: str, average: str, alpha: float) -> Measured | None:
    try:
        table = reading(results, benchmark, rate, average, alpha)
    except NotMeasuredError:
        return None
    (found,) = each_task(table)
    return Measured(found.mean, None if math.isnan(found.error) else found.error, decimals=3)


def _item(benchmark: Benchmark) -> PaperItem:
    return PaperItem(
        f"window-{benchmark.lower()}",
        f"What α is for, which the paper leaves open: the window, noise or the rate ({benchmark})",
        runs=lambda preset: runs(preset, benchmark),
        draw=lambda results: draw(results, benchmark),
        algorithms=_CELLS[benchmark],
    )


PERMUTED, SPLIT = map(_item, BENCHMARKS)
