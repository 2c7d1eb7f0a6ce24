"""Every method on every benchmark, from what the store has: accuracy, forgetting, memory and time."""

import statistics
from typing import NamedTuple

from matplotlib.axes import Axes

from holdfast.errors import ConfigurationError
from holdfast.lab.analysis.repetitions import Estimate, estimate
from holdfast.lab.experiments import Spec
from holdfast.lab.experiments.specs.command_lines import command_of
from holdfast.lab.paper.algorithms import ALGORITHMS, BOUNDS, BY_SAMPLES, IN_TWO_FORMS, KEEPING, OVER_MANY_TASKS
from holdfast.lab.paper.drawing.panels import Panel, figure_of
from holdfast.lab.paper.drawing.tables.relatives_table import accuracy_of, measured
from holdfast.lab.paper.findings import Results
from holdfast.lab.paper.kept_bytes import Kept, kept_bytes
from holdfast.lab.paper.needed_runs import accuracy_runs
from holdfast.lab.paper.presets import BENCHMARKS, Preset
from holdfast.lab.report import Cell, Figure, Table, Text, colour, label
from holdfast.tensors.in_words import in_bytes

_COLUMNS = ("benchmark", "method", "accuracy", "forgetting", "kept of old tasks", "seconds a run", "runs")
_CAPTION = (
    "Every method on every benchmark, from the runs that there are: average accuracy over all tasks after the last and "
    "how far accuracies fell, in per cent; what is kept of old tasks when the last one begins, worked out from the "
    "networks' sizes (≤ where it depends on the data); seconds of training of one run, on whatever it was made."
)
_FIGURE = (
    "The same accuracies: one point a method, with standard errors, the best at the top. Points of bounds, which keep "
    "all data or all networks, are hollow."
)
_LEFT = "Not run yet. Each command makes the runs of one line; where a strength is still unknown, it is searched for."
_ITEMS = {
    **{row.variant: "forms" for row in (*IN_TWO_FORMS, *BY_SAMPLES, *OVER_MANY_TASKS)},
    **{row.variant: "keeping" for row in (*KEEPING, *BOUNDS)},
    "large batch, halves": "batch-size",
    "a tenth of the rate": "training-factors",
    "torch's initial weights": "training-factors",
    "long training": "long-training",
    "SGD": "sgd",
}
"""Which item has the runs of a variant; Table 1 has the others."""
_PER_LINE = 0.17
"""Inches of height that a method takes in the figure."""


class Line(NamedTuple):
    """A method on a benchmark."""

    benchmark: str
    method: str
    specs: list[Spec]
    """Its runs; none where its strength is still to be searched for."""
    makes: str
    """The command that makes them, where no single run's would."""

    @property
    def is_bound(self) -> bool:
        """Whether it keeps everything."""
        return bool(self.specs) and self.specs[0].settings.trains != "sequentially"


def every_line(preset: Preset) -> list[Line]:
    """Return all methods on all benchmarks, the paper's first."""
    lines = []
    for benchmark in BENCHMARKS:
        for row in ALGORITHMS.values():
            if benchmark in row.benchmarks:
                command = f"holdfast reproduce {_ITEMS.get(row.variant, 'table1')} --preset {preset.name}"
                specs = accuracy_runs(preset, benchmark, row)
                lines.append(Line(preset.stages[benchmark].title, label(row.name), specs, command))
    for study in preset.relatives:
        command = f"holdfast reproduce relatives --preset {preset.name}"
        lines += [Line(study.title, row.name, study.runs(row), command) for row in study.rows]
    return lines


def overview_table(results: Results) -> Table:
    """Return a line for each method and benchmark that has runs."""
    rows = []
    for line in every_line(results.preset):
        found = results.finished(line.specs)
        accuracy = accuracy_of(found)
        if accuracy is None:
            continue
        forgotten = estimate(100 * run.forgetting for run in found)
        seconds = round(statistics.mean(run.seconds for run in found), 1)
        kept = _said(kept_bytes(line.specs[0]))
        rows.append((line.benchmark, line.method, measured(accuracy), measured(forgotten), kept, seconds, len(found)))
    return Table("overview", _CAPTION, _COLUMNS, tuple(rows))


def overview_left(results: Results) -> list[Table]:
    """Return what has no run, with the command that makes it; no table where nothing is left."""
    missing = [line for line in every_line(results.preset) if not results.finished(line.specs)]
    rows: list[tuple[Cell, ...]] = [(line.benchmark, line.method, _command(line)) for line in missing]
    return [Table("overview-left", _LEFT, ("benchmark", "method", "command"), tuple(rows))] if rows else []


def _command(line: Line) -> str:
    try:
        return command_of(line.specs) if line.specs else line.makes
    except ConfigurationError:
        return line.makes


def overview_figure(results: Results) -> Figure | Text:
    """Return a panel for each benchmark that has runs."""
    by_benchmark: dict[str, dict[str, tuple[Estimate, bool]]] = {}
    for line in every_line(results.preset):
        accuracy = accuracy_of(results.finished(line.specs))
        if accuracy is not None:
            by_benchmark.setdefault(line.benchmark, {})[line.method] = accuracy, line.is_bound
    panels = [_panel(benchmark, found) for benchmark, found in by_benchmark.items()]
    if not panels:
        return Text("Not measured yet: no run of any method has finished.")
    columns = 2
    tallest = [
        max(len(panel.rows) for panel in panels[first : first + columns]) for first in range(0, len(panels), columns)
    ]
    height = sum(1.0 + _PER_LINE * count for count in tallest) or 2.0
    return figure_of("overview", _FIGURE, panels, columns=columns, size=(10.0, height))


def _panel(title: str, found: dict[str, tuple[Estimate, bool]]) -> Panel:
    ordered = sorted(found.items(), key=lambda entry: entry[1][0].mean)

    def draw(axes: Axes) -> None:
        for place, (method, (accuracy, bound)) in enumerate(ordered):
            shade = colour(method)
            error = 0.0 if accuracy.count < 2 else accuracy.error
            axes.errorbar(accuracy.mean, place, xerr=error, fmt="none", ecolor=shade)
            axes.plot(accuracy.mean, place, "o", markersize=4, color=shade, fillstyle="none" if bound else "full")
        axes.set_yticks(range(len(ordered)), [method for method, _ in ordered], fontsize=6)
        axes.set_xlabel("accuracy, %")
        axes.set_ylim(-0.7, len(ordered) - 0.3)

    rows = tuple((method, None, e.mean, e.error, e.count) for method, (e, _) in reversed(ordered))
    return Panel(title, draw, rows)


def _said(kept: Kept | None) -> str | None:
    if kept is None:
        return None
    return ("≤ " * kept.at_most) + in_bytes(kept.bytes) if kept.bytes else "nothing"
