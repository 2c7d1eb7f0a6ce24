"""Consolidation by itself, where nobody says when a task ends."""

from holdfast.task_free.consolidating import TaskFree
from holdfast.task_free.plateaus import Plateaus

__all__ = ["Plateaus", "TaskFree"]
