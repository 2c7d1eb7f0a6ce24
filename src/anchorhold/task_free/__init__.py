"""Consolidation by itself, where nobody says when a task ends."""

from anchorhold.task_free.consolidating import TaskFree
from anchorhold.task_free.plateaus import Plateaus

__all__ = ["Plateaus", "TaskFree"]
