"""The runs that train at the moment: how fast each group of them goes, and how long it takes until all are done."""

import time
from collections.abc import Callable
from dataclasses import dataclass, field

from rich.progress import Progress as RichProgress

from anchorhold_lab.experiments import Event, RunFailed, RunFinished, RunProgress, RunSkipped, Spec
from anchorhold_lab.training.telling.progress import Progress

_WEIGHT = 0.5
"""How much the newest rate counts; the rest is what was seen before."""
_NOT_BEFORE = 1.0
"""Seconds before which nothing is said of the time that is left, because the first steps are slow."""
_WINDOW = 3600.0
"""Seconds, and with rich at most a thousand looks, from which it is estimated."""


class Pace:
    """Steps a second of the runs' own time, smoothed: news may come late, and several at once.

    It does not count pauses between tasks, which are for measuring and evaluation.
    """

    def __init__(self) -> None:
        self.rate: float | None = None
        self._last: Progress | None = None

    def see(self, progress: Progress) -> None:
        """Take in where the runs stand."""
        last, self._last = self._last, progress
        if last is None or last.task != progress.task:
            return
        steps, seconds = progress.step - last.step, progress.seconds - last.seconds
        if steps > 0 and seconds > 0:  # else they went on from a checkpoint in between
            fresh = steps / seconds
            self.rate = fresh if self.rate is None else _WEIGHT * fresh + (1 - _WEIGHT) * self.rate

    def __str__(self) -> str:
        return "" if self.rate is None else f"{self.rate:,.0f} steps/s"


@dataclass
class Course:
    """How runs that train together get on."""

    share: float
    """How much of each run is done."""
    pace: Pace = field(default_factory=Pace)
    seconds_left: float | None = None
    """Until all runs are done, taken to be as long as these; ``None`` before that can be said."""


class UnderWay:
    """Keeps the course of every group, and how fast all of them go together.

    Args:
        runs: how many runs there will be, where that is known; else those that train now are taken for all.
        clock: seconds, from any beginning.
    """

    def __init__(self, runs: int | None, clock: Callable[[], float] = time.monotonic) -> None:
        self.groups: dict[tuple[Spec, ...], Course] = {}
        self.runs, self.done = runs, 0
        self._estimate = RichProgress(get_time=clock, speed_estimate_period=_WINDOW, disable=True)
        self._estimate.add_task("runs", total=None)
        (self._work,) = self._estimate.tasks

    def see_end(self, event: Event) -> None:
        """Count a run that is over and forget its group; if others of it go on, they tell so."""
        self.done += isinstance(event, RunFinished | RunFailed | RunSkipped)
        if isinstance(event, RunFinished | RunFailed):
            ended = event.result.spec if isinstance(event, RunFinished) else event.spec
            for specs in [specs for specs in self.groups if ended in specs]:
                del self.groups[specs]

    def see(self, event: RunProgress) -> Course:
        """Return how the event's group gets on."""
        for specs in [specs for specs in self.groups if specs != event.specs and set(specs) & set(event.specs)]:
            del self.groups[specs]  # its runs train in other company now
        where = event.progress
        share = (where.task + where.step / where.steps) / where.tasks
        course = self.groups.setdefault(event.specs, Course(share))  # they may go on from a checkpoint
        course.pace.see(where)
        self._estimate.advance(self._work.id, len(event.specs) * max(0.0, share - course.share))
        course.share = share
        runs = sum(map(len, self.groups)) if self.runs is None else self.runs - self.done
        left = runs - sum(len(specs) * each.share for specs, each in self.groups.items())
        speed, elapsed = self._work.speed, self._work.elapsed or 0.0
        course.seconds_left = left / speed if speed and elapsed >= _NOT_BEFORE else None
        return course
