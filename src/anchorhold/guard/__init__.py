"""Holding a network to what it has learned: the anchor, the total importance, the penalty and the hooks."""

from anchorhold.guard.guard import Guard
from anchorhold.guard.ledger import PathRecord, TaskImportance
from anchorhold.guard.rollback.weight_average import averaged_weights

__all__ = ["Guard", "PathRecord", "TaskImportance", "averaged_weights"]
