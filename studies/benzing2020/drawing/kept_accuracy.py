"""What is kept of each task: accuracies in per cent, one row a run, one column a task."""

import numpy as np

from anchorhold_lab.training.metrics import average_accuracies, forgetting
from studies.benzing2020.drawing.task_columns import Table
from studies.benzing2020.findings import NotMeasuredError, Results
from studies.benzing2020.needed_runs import accuracy_runs
from studies.benzing2020.presets import Benchmark


def of_first_task(results: Results, benchmark: Benchmark, algorithm: str) -> Table:
    """Return the first task's accuracy after each task."""
    return 100 * np.array([[row[0] for row in matrix] for matrix in _matrices(results, benchmark, algorithm)])


def of_every_task(results: Results, benchmark: Benchmark, algorithm: str) -> Table:
    """Return every task's accuracy after the last."""
    return 100 * np.array([matrix[-1] for matrix in _matrices(results, benchmark, algorithm)])


def on_average_so_far(results: Results, benchmark: Benchmark, algorithm: str) -> Table:
    """Return the average accuracy over the tasks learned so far, after each task."""
    return 100 * np.array([average_accuracies(matrix) for matrix in _matrices(results, benchmark, algorithm)])


def forgotten_so_far(results: Results, benchmark: Benchmark, algorithm: str) -> Table:
    """Return how far the tasks before have fallen from their best, after each task: 0 after the first."""
    matrices = _matrices(results, benchmark, algorithm)
    return 100 * np.array(
        [[0.0, *(forgetting(matrix[:learned]) for learned in range(2, len(matrix) + 1))] for matrix in matrices]
    )


def _matrices(results: Results, benchmark: Benchmark, algorithm: str) -> list[tuple[tuple[float, ...], ...]]:
    found = [run.matrix for run in results.finished(accuracy_runs(results.preset, benchmark, algorithm))]
    if not found:
        raise NotMeasuredError(f"no run of {algorithm} on {benchmark} has finished")
    return found
