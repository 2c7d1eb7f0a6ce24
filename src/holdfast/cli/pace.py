"""How fast runs go, from what they tell."""

import time
from collections.abc import Callable

from holdfast.training.progress import Progress

_WEIGHT = 0.5
"""How much the newest rate counts; the rest is what was seen before."""


class Pace:
    """Steps a second, smoothed; it does not count pauses between tasks, which are for measuring and evaluation."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self.rate: float | None = None
        self._clock = clock
        self._last: tuple[int, int, float] | None = None

    def see(self, progress: Progress) -> None:
        """Take in where the runs stand."""
        now = self._clock()
        if self._last is not None:
            task, step, then = self._last
            if task == progress.task and progress.step > step and now > then:
                fresh = (progress.step - step) / (now - then)
                self.rate = fresh if self.rate is None else _WEIGHT * fresh + (1 - _WEIGHT) * self.rate
        self._last = (progress.task, progress.step, now)

    def __str__(self) -> str:
        return "" if self.rate is None else f"{self.rate:,.0f} steps/s"
