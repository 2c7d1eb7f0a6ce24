"""Summed importances: SI, SIU, the full-gradient path integral, and the decrease in loss."""

import contextlib

from studies.benzing2020 import authors_data
from studies.benzing2020.drawing.panels import Panel, authors_series, bars, lines_over_tasks, panel_or_reason
from studies.benzing2020.drawing.task_columns import Table, full_paths, head_paths, loss_decreases, raw_sums
from studies.benzing2020.findings import NotMeasuredError, Results
from studies.benzing2020.presets import Benchmark

_Y_LABEL = "sum of importances, or of loss"


def bars_of_sums(results: Results, benchmark: Benchmark, *, task: int) -> Panel:
    """Return the sums of one task as bars; the task is counted from 0."""
    title = f"{results.preset.stages[benchmark].title}, task {task + 1}"
    theirs = authors_series(results, authors_data.SUMS, benchmark)

    def make() -> Panel:
        sums = {name: table[:, task] for name, table in _sums(results, benchmark).items()}
        beside = {name: values[task] for name, values in theirs.items() if task < len(values)}
        return bars(title, sums, y_label=_Y_LABEL, theirs=beside)

    return panel_or_reason(title, make)


def sums_over_tasks(results: Results, benchmark: Benchmark, *, first: int = 1) -> Panel:
    """Return the sums of every task as lines, or of those from a task on."""
    title = results.preset.stages[benchmark].title + (f", from task {first} on" if first > 1 else "")

    def make() -> Panel:
        sums = {name: table[:, first - 1 :] for name, table in _sums(results, benchmark).items()}
        theirs = authors_series(results, authors_data.SUMS, benchmark)
        return lines_over_tasks(title, sums, y_label=_Y_LABEL, first=first, theirs=theirs)

    return panel_or_reason(title, make)


def _sums(results: Results, benchmark: Benchmark) -> dict[str, Table]:
    full = full_paths(results, benchmark)
    found = {
        "SI": raw_sums(results, benchmark, "SI"),
        "SIU": raw_sums(results, benchmark, "SIU"),
        "full gradient": full,
        "decrease in loss": loss_decreases(results, benchmark),
    }
    with contextlib.suppress(NotMeasuredError):
        heads = head_paths(results, benchmark)
        if heads.any():
            found["full gradient, heads too"] = full + heads
    return found
