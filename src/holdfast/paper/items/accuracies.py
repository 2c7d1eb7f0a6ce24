"""Items that are one table of accuracies."""

import dataclasses
from collections.abc import Callable

from holdfast.paper.accuracy_table import accuracy_table
from holdfast.paper.algorithms import ALGORITHMS
from holdfast.paper.item import PaperItem
from holdfast.paper.presets import BENCHMARKS, Benchmark, Preset
from holdfast.paper.runs import rows_of_runs


def accuracy_item(
    name: str,
    title: str,
    caption: Callable[[Preset], str],
    algorithms: tuple[str, ...],
    benchmarks: tuple[Benchmark, ...] = BENCHMARKS,
) -> PaperItem:
    """Return an item that compares some algorithms on some benchmarks."""
    rows = tuple(dataclasses.replace(ALGORITHMS[algorithm], benchmarks=benchmarks) for algorithm in algorithms)
    return PaperItem(
        name,
        title,
        runs=lambda preset: rows_of_runs(preset, rows),
        draw=lambda results: [accuracy_table(name, caption(results.preset), results, rows)],
        algorithms=rows,
    )
