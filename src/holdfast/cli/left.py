"""How long it will take until all runs are done, judging by those that are running."""

import time
from collections.abc import Callable

from holdfast.training.progress import Progress

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
