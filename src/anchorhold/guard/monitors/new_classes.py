"""Warn of one head that is taught classes which the guard has not seen: class-incremental learning.

Importance says which weights the old classes need. It says nothing about how an output of today compares with one that
was never trained beside it, and the cheapest way to learn new classes is to let them win everywhere: most of the old
ones are forgotten at any strength that lets new ones be learned.
"""

from collections.abc import Collection

from anchorhold.errors import warn
from anchorhold.guard.monitor import Monitor, Step, is_capturing
from anchorhold.guard.task_classes import Classes

ENOUGH = 8
"""Labels below which nothing is said: a few say little about a task."""


class NewClasses(Monitor):
    """Compare the classes of a task with those before, by the steps of its head and by the labels of its data."""

    name = "new-classes"

    def before_step(self, step: Step) -> None:
        """Warn if the old classes have been pushed down as far as they go, and never up."""
        core = self.core
        if is_capturing():
            return
        before = core.state.labels if core.state.strength and not core.options.holds else frozenset[int]()
        outputs = core.task.head.look(core.runtime.model, before)
        if outputs is not None:
            warn_of_new_classes(before, Classes(core.task.head.classes, ENOUGH), outputs)

    def at_labels(self, classes: Classes, outputs: int | None) -> None:
        """Warn of labels that are all new; holds of other kinds may keep the old ones."""
        core = self.core
        if not core.options.holds and core.state.strength:
            warn_of_new_classes(core.state.labels, classes, outputs)


def warn_of_new_classes(before: Collection[int], now: Classes, outputs: int | None) -> None:
    """Warn if none of a task's labels is among those that were consolidated, with one head for all.

    Args:
        before: the labels that were consolidated.
        now: those of the task.
        outputs: how many classes the measured outputs have; ``None`` where they are no plain ``[N, C]``, or where some
            are masked out, so that classes of other tasks have no part in this one's.
    """
    if not before or now.samples < ENOUGH or not now.labels or outputs is None or now.labels & set(before):
        return
    if max(now.labels | set(before)) < outputs:  # else they are labels of other heads than this one
        warn(_ALL_NEW.format(now=_range(now.labels), before=_range(before), outputs=outputs))


_ALL_NEW = (
    "The classes of this task ({now}) are all new: none of those consolidated before ({before}) is among them, and one "
    "head of {outputs} outputs has both. Importance alone does not keep classes that were never seen together "
    "(class-incremental learning): most of the old ones are forgotten at any strength that lets the new ones be "
    "learned. Mix some old samples into the batches, or give each task a head of its own where it is known which task "
    "an input is of: docs/guides/class-incremental.md has both, measured. (If old samples are in every batch already, "
    "pay no heed.)"
)


def _range(labels: Collection[int]) -> str:
    ordered = sorted(labels)
    if len(ordered) == ordered[-1] - ordered[0] + 1 and len(ordered) > 2:
        return f"{ordered[0]} to {ordered[-1]}"
    return ", ".join(map(str, ordered[:6])) + (" …" if len(ordered) > 6 else "")
