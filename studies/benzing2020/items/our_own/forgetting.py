"""What is forgotten, and what is kept: the first thing to look at, for those who have not read the paper.

The paper gives the average accuracy after the last task alone; forgetting as in Chaudhry et al. 2018 (arXiv
1801.10112): how far accuracy on earlier tasks has fallen from its best.
"""

import math
from collections.abc import Callable, Sequence

from anchorhold_lab.analysis import Estimate, estimate
from anchorhold_lab.experiments import Spec
from anchorhold_lab.report import Cell, Item, Measured, Table
from studies.benzing2020.algorithms import ALGORITHMS
from studies.benzing2020.drawing import kept_accuracy
from studies.benzing2020.drawing.labelled_lines import over_tasks
from studies.benzing2020.drawing.panels import Panel, figure_of, panel_or_reason
from studies.benzing2020.drawing.task_columns import Table as Measurements
from studies.benzing2020.findings import NotMeasuredError, Results
from studies.benzing2020.item import PaperItem
from studies.benzing2020.needed_runs import rows_of_runs
from studies.benzing2020.presets import BENCHMARKS, Benchmark, Preset

_SHOWN = {
    "fine-tune": "fine-tuning",
    "SOS": "SOS",
    "diagonal EWC": "EWC",
    "rotated EWC": "rotated EWC",
}
"""What is shown, by algorithm: nothing in its place first, and what keeps most last."""
_ALGORITHMS = tuple(ALGORITHMS[name] for name in _SHOWN)
_FIGURE = (
    "A network learns one task after another. Left: how much of all that it has learned so far it still gets right. "
    "Right: how far the tasks before have fallen from their best. Fine-tuning holds nothing; SOS and EWC hold each "
    "weight by what it is worth, and rotated EWC does so in the coordinates of each layer. Bands are standard errors "
    "over runs."
)
_TABLE = (
    "The same after the last task, in per cent: the average accuracy over all tasks, that of the first task, and how "
    "far tasks before the last have fallen from their best, on average."
)


def runs(preset: Preset) -> list[Spec]:
    """Return the runs, all of which other items need too."""
    return rows_of_runs(preset, _ALGORITHMS)


def draw(results: Results) -> Sequence[Item]:
    """Return the figure, and the numbers at its end."""
    panels = [panel for benchmark in BENCHMARKS for panel in _panels(results, benchmark)]
    return [figure_of("forgetting", _FIGURE, panels, columns=2, size=(8.0, 5.8)), _table(results)]


def _panels(results: Results, benchmark: Benchmark) -> list[Panel]:
    title = results.preset.stages[benchmark].title
    kept, lost = kept_accuracy.on_average_so_far, kept_accuracy.forgotten_so_far
    return [
        _lines(f"{title}: kept", results, benchmark, kept, "% right so far"),
        _lines(f"{title}: forgotten", results, benchmark, lost, "points lost of earlier tasks"),
    ]


def _lines(
    title: str,
    results: Results,
    benchmark: Benchmark,
    measure: Callable[[Results, Benchmark, str], Measurements],
    y_label: str,
) -> Panel:
    """Return a line for each algorithm that has runs."""

    def make() -> Panel:
        measured = {algorithm: name for algorithm, name in _SHOWN.items() if results.accuracies(benchmark, algorithm)}
        if not measured:
            raise NotMeasuredError(f"no run of {', '.join(_SHOWN)} on {benchmark} has finished")
        found = {name: measure(results, benchmark, algorithm) for algorithm, name in measured.items()}
        return over_tasks(title, found, y_label=y_label)

    return panel_or_reason(title, make)


def _table(results: Results) -> Table:
    said = ("accuracy", "first task", "forgotten")
    columns = [f"{results.preset.stages[b].title}: {what}" for b in BENCHMARKS for what in said]
    rows = [(name, *_cells(results, algorithm)) for algorithm, name in _SHOWN.items()]
    return Table("forgetting-after-all", _TABLE, ("method", *columns), tuple(rows))


def _cells(results: Results, algorithm: str) -> list[Cell]:
    cells: list[Cell] = []
    for benchmark in BENCHMARKS:
        if not results.accuracies(benchmark, algorithm):
            cells += [None] * 3
            continue
        for measure in (
            kept_accuracy.on_average_so_far,
            kept_accuracy.of_first_task,
            kept_accuracy.forgotten_so_far,
        ):
            cells.append(_measured(estimate(measure(results, benchmark, algorithm)[:, -1])))
    return cells


def _measured(found: Estimate) -> Measured:
    return Measured(found.mean, None if math.isnan(found.error) else found.error, decimals=1)


ITEM = PaperItem("forgetting", "What is forgotten, and what is kept", runs, draw, _ALGORITHMS)
