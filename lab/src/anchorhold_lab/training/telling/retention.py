"""How strongly a run is held, and what is left of the tasks that it learned before: what it notes after each task.

What is left is told by training samples of each task that were set aside (:func:`~anchorhold_lab.scenarios.set_aside`),
with the network's predictions when that task had been learned.
"""

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from anchorhold.errors import ConfigurationError
from anchorhold.guard import Guard
from anchorhold.retention import SetRetention, TracePoint
from anchorhold.settings import check_fields

TRACED = 100
"""Points that are kept of a task's trace, at most: enough to draw it."""


@dataclass(frozen=True)
class Seen:
    """How a run is held at the moment, and what it has lost, by the last look at each kept set."""

    strength: float | None
    """c; ``None`` before there is one, as in the first task."""
    lost: Mapping[str, float]
    """KL(p_old‖p_new) by kept set, in nats a sample."""
    tolerance: float | None = None
    """How much may be lost at the end of this task, where that was said."""

    @property
    def worst(self) -> float | None:
        """The KL of the set that has lost most; ``None`` where there is none yet."""
        return max(self.lost.values(), default=None)


@dataclass(frozen=True)
class TaskRetention:
    """How a task was held, and what was left of those before it once it had been taken in."""

    task: int
    """Which it was, counted from 0."""
    strength: float | None
    """c from then on; ``None`` after the first task where it follows a tolerance, which has nothing to follow yet."""
    sets: tuple[SetRetention, ...] = ()
    """What was left of each task before, then and now."""
    tolerance: float | None = None
    """How much was allowed to be lost by then, where that was said."""
    share: float | None = None
    """How much was left of the way from the anchor where a tolerance was met: 1 where nothing had to go back."""
    trace: tuple[TracePoint, ...] = ()
    """What was seen while it was learned, step by step."""

    @property
    def seen(self) -> Seen:
        """What was seen at its end."""
        return Seen(self.strength, {each.name: each.kl for each in self.sets}, self.tolerance if self.sets else None)

    @property
    def kl(self) -> float | None:
        """The KL of the set that has lost most; ``None`` where there is none."""
        return max((each.kl for each in self.sets), default=None)

    def to_dict(self) -> dict[str, Any]:
        """Return it as plain values, ready for JSON."""
        sets = [dataclasses.asdict(each) for each in self.sets]
        own = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}
        return {**own, "sets": sets, "trace": [list(point) for point in self.trace]}

    @classmethod
    def from_dict(cls, given: Mapping[str, Any]) -> "TaskRetention":
        """Return what :meth:`to_dict` was made of; anything else is refused."""
        check_fields(given, cls, "What is left of tasks")
        try:
            sets = tuple(SetRetention(**each) for each in given["sets"])
            trace = tuple(TracePoint(*point) for point in given["trace"])
        except TypeError as error:
            raise ConfigurationError(f"What is left of tasks cannot be read: {error}.") from error
        found = cls(**{**given, "sets": sets, "trace": trace})
        numbers = [value or 0.0 for value in (found.strength, found.tolerance, found.share)]
        numbers += [value for each in sets for value in (each.kl, each.agreement)]
        if type(found.task) is not int or not all(isinstance(value, int | float) for value in numbers):
            raise ConfigurationError("What is left of tasks has something else than numbers in their place.")
        return found


def noted(guard: Guard, task: int, trace: Sequence[TracePoint]) -> TaskRetention:
    """Look at what is left of all kept sets, and return it with how the task was held.

    Args:
        guard: that has just taken the task in.
        task: which it was.
        trace: what was seen while it was learned.
    """
    sets = guard.retention().sets if guard.kept else ()
    share = guard.control.pulled_back.share if guard.control.pulled_back is not None and sets else None
    every = max(1, -(-len(trace) // TRACED))
    return TaskRetention(task, strength_of(guard), sets, guard.tolerance, share, tuple(trace[::every]))


def strength_of(guard: Guard) -> float | None:
    """Return the c that a guard holds by; ``None`` where it is yet to be found."""
    waiting = guard.relative_strength is not None and not guard.anchor
    waiting |= guard.tolerance is not None and not guard.control.trace
    assert isinstance(guard.strength, float)
    return None if waiting else guard.strength
