"""How fast runs go, and how long it will take until all are done."""

import time
from collections.abc import Callable

from anchorhold_lab.training.telling.progress import Progress

_WEIGHT = 0.5
"""How much the newest rate counts; the rest is what was seen before."""


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


_NOT_BEFORE = 1.0
"""Seconds before which nothing is said, because the first steps are slow."""


class TimeLeft:
    """Takes all runs to be as long as the current ones.

    Args:
        clock: seconds, from any beginning.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._together: object = None
        self._began = 0.0
        self._share_then = 0.0

    def see(self, progress: Progress, together: object, runs: int, left: int) -> float | None:
        """Return the seconds that are left; ``None`` before that can be said.

        Args:
            progress: where the current runs stand.
            together: which runs these are.
            runs: how many they are.
            left: how many are not done yet, these included.
        """
        now, share = self._clock(), (progress.task + progress.step / progress.steps) / progress.tasks
        if together != self._together:  # they may go on from a checkpoint
            self._together, self._began, self._share_then = together, now, share
        if now - self._began < _NOT_BEFORE or share <= self._share_then:
            return None
        whole = (now - self._began) / (share - self._share_then)
        return whole * (left / runs - share)
