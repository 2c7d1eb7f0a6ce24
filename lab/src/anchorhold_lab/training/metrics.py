"""What a run is judged by, from one table: the accuracy on each task after learning each task.

Row i of an accuracy matrix holds the test accuracies after task i has been learned, column j those on task j. Entries
that were not measured are NaN.
"""

import math
import statistics
from collections.abc import Sequence

Matrix = Sequence[Sequence[float]]


def average_accuracy(matrix: Matrix) -> float:
    """Return the mean accuracy over all tasks after the last: the paper's figure."""
    return statistics.mean(matrix[-1][: len(matrix)])


def average_accuracies(matrix: Matrix) -> list[float]:
    """Return the mean accuracy over the tasks seen so far, after each task."""
    return [statistics.mean(row[: i + 1]) for i, row in enumerate(matrix)]


def forgetting(matrix: Matrix) -> float:
    """Return how far accuracy fell from its best to its last, averaged over all tasks but the last."""
    tasks = len(matrix)
    drops = [max(matrix[i][j] for i in range(j, tasks)) - matrix[-1][j] for j in range(tasks - 1)]
    return statistics.mean(drops) if drops else math.nan


def learned_later(matrix: Matrix) -> float:
    """Return how well each task but the first was done just after it was learned, averaged."""
    later = [matrix[j][j] for j in range(1, len(matrix))]
    return statistics.mean(later) if later else math.nan


def backward_transfer(matrix: Matrix) -> float:
    """Return what later tasks did to earlier ones: the last accuracy less that just after learning, averaged."""
    changes = [matrix[-1][j] - matrix[j][j] for j in range(len(matrix) - 1)]
    return statistics.mean(changes) if changes else math.nan


def forward_transfer(matrix: Matrix, untrained: Sequence[float]) -> float:
    """Return what earlier tasks did for later ones.

    That is the accuracy just before learning a task, less that of the untrained network, averaged over all tasks but
    the first.
    """
    gains = [matrix[j - 1][j] - untrained[j] for j in range(1, len(matrix))]
    return statistics.mean(gains) if gains else math.nan


def task_curve(matrix: Matrix, task: int) -> list[float]:
    """Return the accuracy on one task after each task from it on."""
    return [row[task] for row in matrix[task:]]
