"""The rule that decides every claim, written once.

A claim holds if the 95 % interval of its statistic over seeds (Student's; a difference is taken seed by seed over the
seeds that both sides have, and by Welch's interval if they share fewer than three) lies within the claim's limits, and
does not hold if that interval lies outside them. It is undecided if the interval contains a limit, or if fewer than
three seeds have finished.

A claim about several tasks (or pairs of algorithms) holds if it holds on each, and does not hold if it fails on one. So
that the choice among k tasks refutes nothing by chance, one of them has to fail by its interval at the level 1 - 0.05/k
(Bonferroni).
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache

from anchorhold_lab.analysis import Estimate, estimate
from anchorhold_lab.analysis.student_t import two_sided_quantile
from anchorhold_lab.report import Answer

LEVEL = 0.95
"""The confidence of an interval."""
LEAST_SEEDS = 3
"""The fewest runs that decide anything; the paper itself has no fewer in its tables."""

RULE = (
    f"A claim holds if the {100 * LEVEL:g} % interval of its statistic over seeds lies within its limits, and does not "
    "hold if that interval lies outside them. It is undecided if the interval contains a limit, or if fewer than "
    f"{LEAST_SEEDS} seeds have finished."
)
"""The rule, for readers of a page."""

BySeed = Mapping[int, float]
"""A number for each seed."""


@dataclass(frozen=True)
class Measurement:
    """A mean over seeds, and what its interval takes."""

    mean: float
    error: float
    """The standard error of the mean; NaN for a single seed."""
    freedom: float
    """The degrees of freedom that the error was estimated with."""
    seeds: int
    where: str = ""
    """Which task or pair it is from, if a claim is about several."""
    unit: str = "seed"
    """What is repeated: runs with a seed each, but where a claim is about something else."""

    def interval(self, level: float = LEVEL) -> tuple[float, float]:
        """Return the two ends of Student's interval."""
        reach = _quantile(level, self.freedom) * self.error if self.error else 0.0
        return self.mean - reach, self.mean + reach


def mean_of(values: Sequence[float], where: str = "", unit: str = "seed") -> Measurement:
    """Return the mean of one value a seed."""
    found = estimate(values)
    return Measurement(found.mean, found.error, found.count - 1, found.count, where, unit)


def contrast(*terms: tuple[float, BySeed | Estimate], where: str = "") -> Measurement:
    """Return a weighted sum of means, such as a difference: seed by seed if the sides share three seeds.

    Without these, and beside a published mean, errors are added in squares, with the degrees of freedom of Welch and
    Satterthwaite.
    """
    by_seed = [(weight, side) for weight, side in terms if not isinstance(side, Estimate)]
    shared = set.intersection(*(set(side) for _, side in by_seed)) if len(by_seed) == len(terms) else set()
    if len(shared) >= LEAST_SEEDS:
        return mean_of([math.fsum(weight * side[seed] for weight, side in by_seed) for seed in sorted(shared)], where)
    sides = [(weight, side if isinstance(side, Estimate) else estimate(side.values())) for weight, side in terms]
    mean = math.fsum(weight * side.mean for weight, side in sides)
    fewest = min(side.count for _, side in sides)
    if fewest == 1:
        return Measurement(mean, math.nan, math.nan, 1, where)
    squares = [((weight * side.error) ** 2, side.count - 1) for weight, side in sides]
    total = math.fsum(square for square, _ in squares)
    freedom = total**2 / math.fsum(square**2 / free for square, free in squares) if total else math.nan
    return Measurement(mean, math.sqrt(total), freedom, fewest, where)


@dataclass(frozen=True)
class AtLeast:
    """The statistic must not lie below a value."""

    value: float

    def inside(self, low: float, high: float) -> float:
        """Return how far an interval lies within; below 0, by how much it does not."""
        del high
        return low - self.value

    def outside(self, low: float, high: float) -> float:
        """Return how far an interval lies beyond; below 0, by how much it does not."""
        del low
        return self.value - high

    def __str__(self) -> str:
        return f"≥ {self.value:g}"


@dataclass(frozen=True)
class AtMost:
    """The statistic must not lie above a value."""

    value: float

    def inside(self, low: float, high: float) -> float:
        """Return how far an interval lies within; below 0, by how much it does not."""
        del low
        return self.value - high

    def outside(self, low: float, high: float) -> float:
        """Return how far an interval lies beyond; below 0, by how much it does not."""
        del high
        return low - self.value

    def __str__(self) -> str:
        return f"≤ {self.value:g}"


@dataclass(frozen=True)
class Between:
    """The statistic must lie in a range."""

    low: float
    high: float

    def inside(self, low: float, high: float) -> float:
        """Return how far an interval lies within; below 0, by how much it does not."""
        return min(low - self.low, self.high - high)

    def outside(self, low: float, high: float) -> float:
        """Return how far an interval lies beyond; below 0, by how much it does not."""
        return max(low - self.high, self.low - high)

    def __str__(self) -> str:
        return f"from {self.low:g} to {self.high:g}"


Bound = AtLeast | AtMost | Between


@dataclass(frozen=True)
class Decision:
    """What the rule says."""

    answer: Answer
    decided_by: Measurement
    """The measurement that decides, of several the worst."""
    why: str = ""
    """Why nothing is decided, if so."""


def decide(found: Sequence[Measurement], bound: Bound) -> Decision:
    """Return whether a claim holds, by the rule above."""
    fewest = min(found, key=lambda each: each.seeds)
    if fewest.seeds < LEAST_SEEDS:
        return Decision("undecided", fewest, f"Too few seeds: {fewest.seeds}, where the rule asks for {LEAST_SEEDS}.")
    if unknown := next((each for each in found if math.isnan(each.mean)), None):
        return Decision("undecided", unknown, "The statistic is not a number.")
    strict = 1 - (1 - LEVEL) / len(found)
    failing = max(found, key=lambda each: bound.outside(*each.interval(strict)))
    if bound.outside(*failing.interval(strict)) > 0:
        return Decision("does not hold", failing)
    nearest = min(found, key=lambda each: bound.inside(*each.interval()))
    if bound.inside(*nearest.interval()) >= 0:
        return Decision("holds", nearest)
    if bound.outside(*nearest.interval()) > 0:
        why = (
            f"The interval lies beyond the limit, but not at {100 * strict:.1f} %, by which one of {len(found)} fails."
        )
        return Decision("undecided", nearest, why)
    return Decision("undecided", nearest, "The interval contains the limit.")


@cache
def _quantile(level: float, freedom: float) -> float:
    return two_sided_quantile(level, freedom)
