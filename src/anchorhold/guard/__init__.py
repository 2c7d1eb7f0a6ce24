"""Holding a network to what it has learned: the anchor, the total importance, the penalty and the hooks."""

from anchorhold.guard.arguments.options import GuardOptions
from anchorhold.guard.guard import Guard, blank_state_dict, may_attach
from anchorhold.guard.ledger import PathRecord, TaskImportance
from anchorhold.guard.rollback.weight_average import averaged_weights

__all__ = [
    "Guard",
    "GuardOptions",
    "PathRecord",
    "TaskImportance",
    "averaged_weights",
    "blank_state_dict",
    "may_attach",
]
