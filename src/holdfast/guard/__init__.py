"""Holding a network to what it has learned: the anchor, the total importance, the penalty and the hooks."""

from holdfast.guard.consolidator import Consolidator
from holdfast.guard.ledger import PathRecord, TaskImportance
from holdfast.guard.moving.weight_average import averaged_weights

__all__ = ["Consolidator", "PathRecord", "TaskImportance", "averaged_weights"]
