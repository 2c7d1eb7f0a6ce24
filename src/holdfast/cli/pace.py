"""How fast runs go, from what they tell."""

from holdfast.training.progress import Progress

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
