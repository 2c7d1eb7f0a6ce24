"""What a search found: every point of its grid, the one that was chosen, and how that one does on test data."""

import math
import statistics
from dataclasses import dataclass
from typing import Any, Literal

from anchorhold_lab.analysis.repetitions import standard_error

Stopped = Literal["interrupted", "waiting"]


@dataclass(frozen=True)
class Point:
    """One strength, with re-initialisation or without, and how well its runs did."""

    strength: float
    reinitialise: bool
    accuracies: tuple[float | None, ...]
    """The average accuracy over tasks of each seed's run; ``None`` for a run that failed."""
    relative: bool = False
    """Whether the strength is a relative one, s, of which each run makes its own c."""

    @property
    def seeds(self) -> int:
        """How many seeds it was judged by."""
        return len(self.accuracies)

    @property
    def finished(self) -> list[float]:
        """The accuracies of the runs that did not fail."""
        return [accuracy for accuracy in self.accuracies if accuracy is not None]

    @property
    def failed(self) -> int:
        """How many runs failed, most often because they diverged."""
        return self.seeds - len(self.finished)

    @property
    def accuracy(self) -> float:
        """The mean accuracy of the runs that did not fail; NaN if all did."""
        return statistics.mean(self.finished) if self.finished else math.nan

    @property
    def error(self) -> float:
        """Its standard error, which takes two runs or more."""
        return standard_error(self.finished)

    @property
    def rank(self) -> tuple[int, float, float, bool]:
        """The best point has the smallest: no failures, then accuracy, then the smaller strength, then no re-init."""
        # Rounded, because the same number of right answers can be summed in another order.
        accuracy = round(self.accuracy, 9) if self.finished else 0.0
        return self.failed, -accuracy, self.strength, self.reinitialise

    @property
    def symbol(self) -> str:
        """What its strength is called: c, or s for a relative one."""
        return "s" if self.relative else "c"

    def __str__(self) -> str:
        return f"{self.symbol} = {self.strength:g} {'with' if self.reinitialise else 'without'} re-initialisation"

    def to_dict(self) -> dict[str, Any]:
        """Return the point as plain values, ready for JSON."""
        return {
            "relative_strength" if self.relative else "strength": self.strength,
            "reinitialise": self.reinitialise,
            "seeds": self.seeds,
            "accuracy": _number(self.accuracy),
            "error": _number(self.error),
            "accuracies": list(self.accuracies),
        }


@dataclass(frozen=True)
class SearchOutcome:
    """A search, as far as it came."""

    scenario: str
    measure: str
    points: tuple[Point, ...]
    """All that were tried, judged by validation data; the smallest strength first. Those that did best with the first
    seed were judged by several."""
    choice: Point | None
    """The best of these; ``None`` if the search was stopped, or all runs failed."""
    why: str
    """Why it was chosen, or why none was."""
    test: Point | None = None
    """The choice on test data, with other seeds; ``None`` if there is no choice, or the search was stopped."""
    stopped: Stopped | None = None
    """Whether it was interrupted, or needs a run that another process is making; the same search goes on."""

    def to_dict(self) -> dict[str, Any]:
        """Return the outcome as plain values, ready for JSON."""
        return {
            "scenario": self.scenario,
            "measure": self.measure,
            "points": [point.to_dict() for point in self.points],
            "choice": None if self.choice is None else self.choice.to_dict(),
            "why": self.why,
            "test": None if self.test is None else self.test.to_dict(),
            "stopped": self.stopped,
        }


def _number(value: float) -> float | None:
    """Return a number as JSON has it, which knows no NaN."""
    return None if math.isnan(value) else value
