"""The statistics that claims are made of: differences of accuracies, and the worst of several tasks."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass

import numpy as np

from anchorhold_lab.analysis import Estimate, difference_between
from studies.benzing2020.drawing.task_columns import Table, each_task
from studies.benzing2020.findings import Results
from studies.benzing2020.presets import Benchmark

Statistic = Callable[[Results], Estimate]


@dataclass(frozen=True)
class OnTask(Estimate):
    """An estimate from the task that stands out."""

    task: int
    """Which task that is, counted from 1."""


def difference(benchmark: Benchmark, better: str, worse: str) -> Statistic:
    """Return by how many points one algorithm is more accurate than another; the error counts both."""

    def statistic(results: Results) -> Estimate:
        a, b = results.accuracy(benchmark, better), results.accuracy(benchmark, worse)
        return difference_between(a, b)

    return statistic


def spread(benchmark: Benchmark, *algorithms: str) -> Statistic:
    """Return the points between the best and the worst of some algorithms."""

    def statistic(results: Results) -> Estimate:
        found = sorted((results.accuracy(benchmark, name) for name in algorithms), key=lambda e: e.mean)
        worst, best = found[0], found[-1]
        return difference_between(best, worst)

    return statistic


def lowest(measure: Callable[[Results], Table], *, tasks: slice = slice(None)) -> Statistic:
    """Return the mean over runs on the task where it is lowest."""
    return lambda results: min(_on_tasks(measure(results), tasks), key=lambda e: e.mean)


def highest(measure: Callable[[Results], Table], *, tasks: slice = slice(None)) -> Statistic:
    """Return the mean over runs on the task where it is highest."""
    return lambda results: max(_on_tasks(measure(results), tasks), key=lambda e: e.mean)


def farthest_from_zero(table: Table) -> OnTask:
    """Return the size of the mean over runs on the task where it is farthest from 0, whatever its sign."""
    found = max(_on_tasks(table, slice(None)), key=lambda e: abs(e.mean))
    return OnTask(abs(found.mean), found.error, found.count, found.task)


def over_tasks(measure: Callable[[Results], Table], *, tasks: slice = slice(None)) -> Statistic:
    """Return the mean over some tasks; the error is that over runs."""
    return lambda results: each_task(np.mean(measure(results)[:, tasks], axis=1, keepdims=True))[0]


def _on_tasks(table: Table, tasks: slice) -> Iterable[OnTask]:
    numbers = range(1, table.shape[1] + 1)[tasks]
    for number, found in zip(numbers, each_task(table[:, tasks]), strict=True):
        yield OnTask(found.mean, found.error, found.count, number)


FIRST, LATER, LAST, ALL_BUT_LAST = slice(0, 1), slice(1, None), slice(-1, None), slice(0, -1)
