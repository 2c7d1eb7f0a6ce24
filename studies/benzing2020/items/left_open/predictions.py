"""Appendix B's predictions, which the paper leaves open: SI against SOS with other rates, sizes, orders and SGD."""

import math
from collections.abc import Callable, Sequence

from anchorhold_lab.analysis import estimate
from anchorhold_lab.experiments import Result, Spec
from anchorhold_lab.report import Cell, Item, Measured, Table
from studies.benzing2020.algorithms import ALGORITHMS, PREDICTIONS
from studies.benzing2020.claims.left_open.predictions import forgotten, last_accuracy, over_runs, small_tasks
from studies.benzing2020.drawing.tables.accuracy_table import accuracy_table
from studies.benzing2020.findings import NotMeasuredError, Results
from studies.benzing2020.item import PaperItem
from studies.benzing2020.needed_runs import accuracy_runs, rows_of_runs
from studies.benzing2020.presets import Benchmark, Preset

# Strengths that are known cost nothing but their runs; what is to be searched for comes in the order of its worth.
_ALGORITHMS = (ALGORITHMS["SI"], ALGORITHMS["SOS"], ALGORITHMS["SI, SGD"], *PREDICTIONS)
_CAPTION = (
    "What the paper's Appendix B expects of SI and not of SOS, and leaves to others: that it suffers from a learning "
    "rate that decays over each task (to {decay:g} of itself), from tasks of unequal sizes (by turns {sizes}), from "
    "easy tasks before hard ones, and from SGD. Average accuracy after the last task in per cent. The orders have the "
    "strengths of Table 1; {strengths}"
)
_KEPT = (
    "What that does to tasks: the accuracy after the last task of those that are small where sizes are unequal, and of "
    "the others, and forgetting, how far accuracies fell from their best on the way; in per cent."
)


def runs(preset: Preset) -> list[Spec]:
    """Return the runs of all rows."""
    return rows_of_runs(preset, _ALGORITHMS)


def draw(results: Results) -> Sequence[Item]:
    """Return the accuracies, and what was kept of which tasks."""
    variants = results.preset.stages["P-MNIST"].variants
    caption = _CAPTION.format(
        decay=variants["decaying rate"]["rate_decay"],
        sizes=", ".join(f"{share:g}" for share in variants["unequal sizes"]["sizes"]),
        strengths=results.preset.strengths[0].lower() + results.preset.strengths[1:],
    )
    return [accuracy_table("predictions", caption, results, _ALGORITHMS), _kept(results)]


def _kept(results: Results) -> Table:
    small = small_tasks(_unequal(results.preset))
    tasks = range(len(_unequal(results.preset).sizes))
    large = [task for task in tasks if task not in small]
    rows: list[tuple[Cell, ...]] = []
    for algorithm in _ALGORITHMS:
        for benchmark in algorithm.benchmarks:
            sized = benchmark == "P-MNIST"
            rows.append(
                (
                    f"{algorithm.name}, {results.preset.stages[benchmark].title}",
                    _cell(results, benchmark, algorithm.name, last_accuracy(small)) if sized else None,
                    _cell(results, benchmark, algorithm.name, last_accuracy(large)) if sized else None,
                    _cell(results, benchmark, algorithm.name, forgotten),
                )
            )
    return Table("predictions-tasks", _KEPT, ("algorithm", "small tasks", "other tasks", "forgetting"), tuple(rows))


def _unequal(preset: Preset) -> Spec:
    """Return any run whose tasks are of unequal sizes; its strength says nothing here."""
    variant = preset.stages["P-MNIST"].variants["unequal sizes"]
    return preset.spec("P-MNIST", "SI", sizes=variant["sizes"])


def _cell(results: Results, benchmark: Benchmark, algorithm: str, of: Callable[[Result], float]) -> Measured | None:
    if not accuracy_runs(results.preset, benchmark, algorithm):
        return None
    try:
        found = estimate(over_runs(results, benchmark, algorithm, of).values())
    except NotMeasuredError:
        return None
    return Measured(found.mean, None if math.isnan(found.error) else found.error, decimals=2)


ITEM = PaperItem(
    "predictions",
    "Appendix B: what is expected of SI and not of SOS",
    runs,
    draw,
    _ALGORITHMS,
)
