"""What the lessons come to: for every measure and strength, English lost and Python gained, over seeds."""

import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from benchmarks.language.python import Learned


@dataclass(frozen=True)
class Mean:
    """A mean over seeds and its standard error, ``None`` for a single seed."""

    value: float
    error: float | None

    @classmethod
    def over(cls, values: Sequence[float]) -> "Mean":
        """Return the mean of some values."""
        many = len(values) > 1
        return cls(statistics.mean(values), statistics.stdev(values) / len(values) ** 0.5 if many else None)

    def __str__(self) -> str:
        return f"{self.value:.3f}" + (f" ± {self.error:.3f}" if self.error is not None else "")


@dataclass(frozen=True)
class Point:
    """A measure with one strength."""

    way: str
    measure: str
    strength: float
    lost: Mean
    gained: Mean
    seeds: tuple[int, ...]


def points(learned: Sequence[Learned]) -> list[Point]:
    """Return the points of every way and measure, by strength.

    A network that had to learn English again is another network: its lessons take the place of its seed's earlier ones.
    """
    latest = {found.lesson.seed: found.lesson.network for found in learned}
    groups: dict[tuple[str, str, float], dict[int, Learned]] = {}
    for found in learned:
        lesson = found.lesson
        if lesson.network == latest[lesson.seed]:
            groups.setdefault((lesson.way, lesson.measure, lesson.strength), {})[lesson.seed] = found
    return [
        Point(
            *key,
            lost=Mean.over([found.lost for found in group.values()]),
            gained=Mean.over([found.gained for found in group.values()]),
            seeds=tuple(sorted(group)),
        )
        for key, group in sorted(groups.items())
    ]


def lost_at(line: Sequence[Point], gained: float) -> float | None:
    """Return the English lost where a measure's line over strengths reaches a gain, or ``None`` if it does not."""
    ordered = sorted((point.gained.value, point.lost.value) for point in line)
    for (low, at_low), (high, at_high) in pairwise(ordered):
        if low <= gained <= high:
            return at_low if high == low else at_low + (at_high - at_low) * (gained - low) / (high - low)
    return None
