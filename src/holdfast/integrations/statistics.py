"""What is worth a line in a training log."""

import torch

from holdfast.consolidation import Consolidator


def statistics(guard: Consolidator) -> dict[str, float]:
    """Return the penalty, the mean and the largest total importance of a weight (0 at first), and the tasks so far."""
    with torch.no_grad():
        penalty = float(guard.penalty())
    importance = list(guard.importance.values())
    weights = sum(omega.numel() for omega in importance)
    total = sum(float(omega.sum(dtype=torch.float32)) for omega in importance)
    return {
        "holdfast/penalty": penalty,
        "holdfast/importance_mean": total / weights if weights else 0.0,
        "holdfast/importance_max": max((float(omega.max()) for omega in importance), default=0.0),
        "holdfast/tasks": float(guard.tasks),
    }
