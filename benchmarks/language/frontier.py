"""What the lessons come to: for every measure and strength, English lost and Python gained, over seeds."""

import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from benchmarks.language.python import FINE_TUNE, Learned
from benchmarks.language.settings import FROM_START, UNGUARDED


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
    share: Mean | None
    """Of what the same network gains by fine-tuning: seeds differ in how much Python there is for them to gain."""
    seeds: tuple[int, ...]


def points(learned: Sequence[Learned]) -> list[Point]:
    """Return the points of every way and measure, by strength."""
    latest = _latest(learned)
    free = {(found.lesson.way, found.lesson.seed): found for found in latest if found.lesson.measure == FINE_TUNE}
    groups: dict[tuple[str, str, float], dict[int, Learned]] = {}
    for found in latest:
        lesson = found.lesson
        groups.setdefault((lesson.way, lesson.measure, lesson.strength), {})[lesson.seed] = found

    def share(way: str, group: dict[int, Learned]) -> Mean | None:
        if any((way, seed) not in free for seed in group):
            return None
        return Mean.over([found.gained / free[way, seed].gained for seed, found in group.items()])

    return [
        Point(
            *key,
            lost=Mean.over([found.lost for found in group.values()]),
            gained=Mean.over([found.gained for found in group.values()]),
            share=share(key[0], group),
            seeds=tuple(sorted(group)),
        )
        for key, group in sorted(groups.items())
    ]


def lost_at_share(learned: Sequence[Learned], way: str, measure: str, share: float) -> dict[int, float]:
    """Return the English that each seed loses where a measure leaves it a share of what its fine-tuning gains.

    Seeds that were not taught with it are left out. Nothing if the line of some other over strengths does not reach
    that far: a mean over the rest would mislead. A guard's line ends with its weakest strength, since fine-tuning, at a
    strength of 0, is any number of powers of ten away. What is done without a guard ends in fine-tuning at a share of
    1, or begins there, with replay, at 0.
    """
    here = [found for found in _latest(learned) if found.lesson.way == way]
    lost = {}
    for free in (found for found in here if found.lesson.measure == FINE_TUNE):
        seed = free.lesson.seed
        line = [found for found in here if found.lesson.seed == seed and found.lesson.measure == measure]
        if not line:
            continue
        ends = [(free.gained, free.lost)] if measure in UNGUARDED else []
        ends += [(0.0, 0.0)] if measure in FROM_START else []
        there = lost_at([*ends, *((found.gained, found.lost) for found in line)], share * free.gained)
        if there is None:
            return {}
        lost[seed] = there
    return lost


def _latest(learned: Sequence[Learned]) -> list[Learned]:
    """Return the lessons of each seed's latest network: one that had to learn English again is another network."""
    latest = {found.lesson.seed: found.lesson.network for found in learned}
    return [found for found in learned if found.lesson.network == latest[found.lesson.seed]]


def lost_at(line: Sequence[tuple[float, float]], gained: float) -> float | None:
    """Return the loss where a line through points (gained, lost) reaches a gain, or ``None`` if it does not."""
    for (low, at_low), (high, at_high) in pairwise(sorted(line)):
        if low <= gained <= high:
            return at_low if high == low else at_low + (at_high - at_low) * (gained - low) / (high - low)
    return None
