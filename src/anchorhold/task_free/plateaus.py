"""When the loss of a stream has settled: a plateau that follows a peak (Aljundi et al. 2019, arXiv 1812.03596)."""

import math
from collections import deque
from collections.abc import Mapping
from typing import Any

from anchorhold.errors import NotFiniteError, StateError
from anchorhold.settings import number, whole_number


class Plateaus:
    """Looks at the mean and the variance of the last losses.

    A plateau is where both are below their thresholds. It counts once: the next one only after a peak, where the mean
    is above that of the last plateau by more than that one's standard deviation. The beginning of training is a peak.

    Args:
        window: how many losses are looked at.
        mean: below which their mean has to be.
        variance: below which their variance has to be.
    """

    def __init__(self, window: int = 5, mean: float = 0.3, variance: float = 0.05) -> None:
        self.window = whole_number("window", window, "a whole number of at least 2", least=2)
        self.mean = number("mean", mean, "a number", None)
        self.variance = number("variance", variance, "a number above 0", lambda given: given > 0)
        self.losses: deque[float] = deque(maxlen=self.window)
        self.peak = True
        """Whether there was a peak since the last plateau."""
        self.last: tuple[float, float] | None = None
        """The mean and the standard deviation of the last plateau."""

    def __repr__(self) -> str:
        asked = f"Plateaus(window={self.window}, mean={self.mean:g}, variance={self.variance:g})"
        if len(self.losses) < self.window:
            return asked
        mean, variance = self._moments()
        waiting = "" if self.peak else ", and no peak since the last plateau"
        return f"{asked}, now at mean {mean:.3g} and variance {variance:.3g}{waiting}"

    def _moments(self) -> tuple[float, float]:
        mean = math.fsum(self.losses) / self.window
        return mean, math.fsum((each - mean) ** 2 for each in self.losses) / self.window

    def is_reached(self, loss: float) -> bool:
        """Take a step's loss in, and return whether a plateau that counts is reached by it."""
        if not math.isfinite(loss):
            raise NotFiniteError(
                f"A loss of {loss} was given to see by it when to consolidate, and it is no number. Nothing was "
                "consolidated. Look at this batch, or leave its step out."
            )
        self.losses.append(loss)
        if len(self.losses) < self.window:
            return False
        mean, variance = self._moments()
        if self.last is not None and mean > self.last[0] + self.last[1]:
            self.peak = True
        if not self.peak or mean >= self.mean or variance >= self.variance:
            return False
        self.peak, self.last = False, (mean, math.sqrt(variance))
        return True

    def state_dict(self) -> dict[str, Any]:
        """Return where it is at, as plain values."""
        return {"losses": list(self.losses), "peak": self.peak, "last": None if self.last is None else list(self.last)}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from there."""
        try:
            losses, peak, last = [float(each) for each in state["losses"]], state["peak"], state["last"]
            mean, deviation = (0.0, 0.0) if last is None else map(float, last)
        except (KeyError, TypeError, ValueError, IndexError) as error:
            raise StateError(f"This is no state of Plateaus ({type(error).__name__}: {error}).") from error
        if not all(map(math.isfinite, (*losses, mean, deviation))):
            raise StateError(f"This state of Plateaus has losses that are not finite: {losses}, {last}.")
        if deviation < 0 or not isinstance(peak, bool):
            raise StateError(
                f"This state of Plateaus has peak={peak!r} and a last plateau of mean and standard deviation {last}; "
                "expected True or False, and a deviation of 0 or more. It is damaged: use another copy."
            )
        found = None if last is None else (mean, deviation)
        self.losses, self.peak, self.last = deque(losses, maxlen=self.window), peak, found
