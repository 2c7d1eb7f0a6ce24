"""Holding a network to what it has learned: the anchor, the total importance, the penalty and the hooks."""

from holdfast.consolidation.averages import averaged_weights
from holdfast.consolidation.consolidator import Consolidator
from holdfast.consolidation.ledger import PathRecord, TaskImportance

__all__ = ["Consolidator", "PathRecord", "TaskImportance", "averaged_weights"]
