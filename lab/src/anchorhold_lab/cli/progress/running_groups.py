"""The runs that train at the moment: one group of them, or several at once on several machines."""

import time
from collections.abc import Callable

from anchorhold_lab.cli.progress.time_left import Pace, TimeLeft
from anchorhold_lab.experiments import RunProgress, Spec


class Course:
    """How runs that train together get on."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self.pace = Pace()
        self.seconds_left: float | None = None
        """Until all runs are done; ``None`` before that can be said."""
        self._time_left = TimeLeft(clock)

    def see(self, event: RunProgress, at_once: int, left: int) -> None:
        """Take in where the runs stand, of how many at once, and of how many that are not done yet."""
        self.pace.see(event.progress)
        self.seconds_left = self._time_left.see(event.progress, event.specs, at_once, left)


class UnderWay:
    """Keeps the course of every group.

    Args:
        runs: how many runs there will be, where that is known.
        clock: seconds, from any beginning.
    """

    def __init__(self, runs: int | None, clock: Callable[[], float] = time.monotonic) -> None:
        self.groups: dict[tuple[Spec, ...], Course] = {}
        self._runs, self._clock = runs, clock

    def see(self, event: RunProgress, done: int) -> Course:
        """Return how the event's group gets on, after so many runs were done."""
        for specs in [specs for specs in self.groups if specs != event.specs and set(specs) & set(event.specs)]:
            del self.groups[specs]  # its runs train in other company now
        course = self.groups.setdefault(event.specs, Course(self._clock))
        at_once = sum(map(len, self.groups))
        course.see(event, at_once, at_once if self._runs is None else self._runs - done)
        return course

    def end(self, spec: Spec) -> None:
        """Forget the group of a run that is over; if others of it go on, they tell so."""
        for specs in [specs for specs in self.groups if spec in specs]:
            del self.groups[specs]
