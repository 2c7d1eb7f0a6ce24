"""What is worth a line in a training log."""

import torch

from holdfast.consolidation import Consolidator
from holdfast.consolidation.sharding import whole_maxima, whole_sums


def statistics(guard: Consolidator) -> dict[str, float]:
    """Return the penalty, the mean and the largest total importance of a weight (0 at first), and the tasks so far.

    For a sharded model they are those of all its parts, and every process has to ask for them at the same time.
    """
    with torch.no_grad():
        penalty = float(guard.penalty())
    importance = list(guard.importance.values())
    weights = sum(omega.numel() for omega in importance)
    total = sum(map(float, whole_sums([omega.sum(dtype=torch.float32) for omega in importance])))
    return {
        "holdfast/penalty": penalty,
        "holdfast/importance_mean": total / weights if weights else 0.0,
        "holdfast/importance_max": max(map(float, whole_maxima(importance)), default=0.0),
        "holdfast/tasks": float(guard.tasks),
    }
