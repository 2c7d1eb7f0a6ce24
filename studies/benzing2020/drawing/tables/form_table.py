"""What each form keeps of a benchmark, as a table, beside the best of Table 1 and what others have published."""

import math
from collections.abc import Sequence

from anchorhold_lab.analysis import Estimate
from anchorhold_lab.report import Cell, Measured, Table, label
from studies.benzing2020.algorithms import TABLE1
from studies.benzing2020.drawing.kept_accuracy import of_every_task
from studies.benzing2020.drawing.task_columns import each_task
from studies.benzing2020.findings import NotMeasuredError, Results
from studies.benzing2020.needed_runs import accuracy_runs
from studies.benzing2020.presets import Benchmark
from studies.benzing2020.published import ACCURACIES, ELSEWHERE

_COLUMNS = ("method", "accuracy", "first task", "last task", "strength", "runs")


def form_table(name: str, caption: str, results: Results, benchmark: Benchmark, algorithms: Sequence[str]) -> Table:
    """Return a line for each algorithm and for the best of Table 1; where we follow the paper, others' numbers too."""
    best = best_of_table1(results, benchmark)
    rows = [_row(results, benchmark, algorithm, called=algorithm) for algorithm in algorithms]
    rows.append(_row(results, benchmark, best, called=f"best of Table 1: {label(best)}") if best else _EMPTY)
    if not results.preset.follows_the_paper:
        return Table(name, caption, _COLUMNS, tuple(rows))
    published = {name: found for (where, name), found in ACCURACIES.items() if where == benchmark}
    theirs = max((row.name for row in TABLE1), key=lambda name: published[name].mean)
    others = [(f"the paper's best: {label(theirs)}", published[theirs].cell())]
    others += [(called, found.cell()) for (where, called), found in ELSEWHERE.items() if where == benchmark]
    with_others = [(*row, None) for row in rows]
    with_others += [(called, *[None] * (len(_COLUMNS) - 1), cell) for called, cell in others]
    return Table(name, caption, (*_COLUMNS, "in other papers"), tuple(with_others))


_EMPTY: tuple[Cell, ...] = ("best of Table 1", *[None] * (len(_COLUMNS) - 1))


def _row(results: Results, benchmark: Benchmark, algorithm: str, *, called: str) -> tuple[Cell, ...]:
    *kept, count = kept_cells(results, benchmark, algorithm)
    if count is None:
        return (called, *[None] * (len(_COLUMNS) - 1))
    return (called, *kept, accuracy_runs(results.preset, benchmark, algorithm)[0].strength, count)


def kept_cells(results: Results, benchmark: Benchmark, algorithm: str) -> list[Cell]:
    """Return the accuracy over all tasks, of the first and of the last, and of how many runs; nothing without any."""
    try:
        accuracy = results.accuracy(benchmark, algorithm)
    except NotMeasuredError:
        return [None] * 4
    tasks = each_task(of_every_task(results, benchmark, algorithm))
    return [*(_measured(found) for found in (accuracy, tasks[0], tasks[-1])), accuracy.count]


def best_of_table1(results: Results, benchmark: Benchmark) -> str | None:
    """Return which of Table 1's algorithms is the most accurate in our runs; ``None`` where there are none."""
    found = {row.name: results.accuracies(benchmark, row.name) for row in TABLE1}
    means = {name: math.fsum(each) / len(each) for name, each in found.items() if each}
    return max(means, key=lambda name: means[name], default=None)


def _measured(found: Estimate) -> Measured:
    return Measured(found.mean, None if math.isnan(found.error) else found.error, decimals=2)
