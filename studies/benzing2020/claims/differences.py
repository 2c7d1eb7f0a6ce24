"""The statistics that claims are made of: differences of accuracies seed by seed, and one number for each task."""

from collections.abc import Callable, Sequence
from itertools import combinations

import numpy as np

from studies.benzing2020.claims.rule import Measurement, contrast, mean_of
from studies.benzing2020.drawing.task_columns import Table
from studies.benzing2020.findings import Results
from studies.benzing2020.presets import Benchmark

Statistic = Callable[[Results], Sequence[Measurement]]


def accuracy(benchmark: Benchmark, algorithm: str) -> Statistic:
    """Return the accuracy of an algorithm."""
    return lambda results: [contrast((1.0, results.accuracy_by_seed(benchmark, algorithm)))]


def difference(benchmark: Benchmark, better: str, worse: str) -> Statistic:
    """Return by how many points one algorithm is more accurate than another."""

    def statistic(results: Results) -> Sequence[Measurement]:
        a, b = (results.accuracy_by_seed(benchmark, name) for name in (better, worse))
        return [contrast((1.0, a), (-1.0, b))]

    return statistic


def differences(benchmark: Benchmark, *algorithms: str) -> Statistic:
    """Return by how many points each of some algorithms is more accurate than each other one."""

    def statistic(results: Results) -> Sequence[Measurement]:
        found = {name: results.accuracy_by_seed(benchmark, name) for name in algorithms}
        pairs = combinations(found.items(), 2)
        return [contrast((1.0, a), (-1.0, b), where=f"{first} less {second}") for (first, a), (second, b) in pairs]

    return statistic


def on_each_task(measure: Callable[[Results], Table], *, tasks: slice = slice(None)) -> Statistic:
    """Return the mean over runs on each of some tasks."""
    return lambda results: each_column(measure(results), tasks)


def over_tasks(measure: Callable[[Results], Table], *, tasks: slice = slice(None)) -> Statistic:
    """Return the mean over some tasks, run by run."""
    return lambda results: [mean_of(np.mean(measure(results)[:, tasks], axis=1).tolist())]


def each_column(table: Table, tasks: slice = slice(None)) -> list[Measurement]:
    """Return the mean of each of some columns, which are tasks."""
    numbers = range(1, table.shape[1] + 1)[tasks]
    return [mean_of(table[:, number - 1].tolist(), f"task {number}") for number in numbers]


FIRST, LATER, LAST, ALL_BUT_LAST = slice(0, 1), slice(1, None), slice(-1, None), slice(0, -1)
