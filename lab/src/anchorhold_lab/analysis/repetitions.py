"""What repeated runs say together: means with their errors, and whether two of them differ."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from anchorhold.errors import ConfigurationError
from anchorhold_lab.analysis.student_t import two_sided_p, two_sided_quantile


@dataclass(frozen=True)
class Estimate:
    """A mean, and how far it may be off."""

    mean: float
    error: float
    """The standard error of the mean; NaN for a single value, whose spread is unknown."""
    count: int
    """How many values it is the mean of."""


@dataclass(frozen=True)
class WelchTest:
    """The outcome of a test whether two means are the same, when their variances may differ."""

    t: float
    freedom: float
    """The degrees of freedom, after Welch and Satterthwaite."""
    p: float
    """The two-sided p-value: how likely means at least so far apart are if nothing differs."""


def estimate(values: Iterable[float]) -> Estimate:
    """Return the mean of values, with its standard error."""
    values = [float(value) for value in values]
    count = len(values)
    if not count:
        raise ConfigurationError("estimate() was given no values; expected at least one.")
    mean = math.fsum(values) / count
    if count == 1:
        return Estimate(mean, math.nan, 1)
    variance = math.fsum((value - mean) ** 2 for value in values) / (count - 1)
    return Estimate(mean, math.sqrt(variance / count), count)


def standard_error(values: Sequence[float]) -> float:
    """Return the standard error of a mean; it takes two values or more."""
    return estimate(values).error if len(values) > 1 else math.nan


def difference_between(a: Estimate, b: Estimate) -> Estimate:
    """Return by how much a lies above b, with the errors of both counted, from as many values as the fewer have."""
    return Estimate(a.mean - b.mean, math.hypot(a.error, b.error), min(a.count, b.count))


def difference_in_errors(a: Estimate, b: Estimate) -> float:
    """Return how many standard errors a lies above b, with the errors of both counted; NaN if one is unknown."""
    found = difference_between(a, b)
    return _ratio(found.mean, found.error)


def welch_test(a: Estimate, b: Estimate) -> WelchTest:
    """Return whether two means differ; published means with their standard errors will do."""
    squares = a.error**2, b.error**2
    t = difference_in_errors(a, b)
    if math.isnan(sum(squares)) or not sum(squares):
        # Without any spread there is nothing to doubt, and nothing to compare where the means are equal too.
        return WelchTest(t, math.nan, 0.0 if math.isinf(t) else math.nan)
    parts = (square**2 / (estimated.count - 1) for square, estimated in zip(squares, (a, b), strict=True) if square)
    freedom = sum(squares) ** 2 / math.fsum(parts)
    return WelchTest(t, freedom, two_sided_p(t, freedom))


def correlation_interval(correlations: Sequence[float], level: float = 0.95) -> tuple[float, float]:
    """Return where the correlation lies of which repetitions gave these values, with the given confidence.

    The interval is Student's for artanh r, since r itself is skewed near ±1, and never leaves [-1, 1].
    """
    if not 0 < level < 1:
        raise ConfigurationError(f"level={level}: expected a confidence between 0 and 1, such as 0.95.")
    edge = math.nextafter(1.0, 0.0)
    found = estimate(math.nan if math.isnan(r) else math.atanh(min(edge, max(-edge, r))) for r in correlations)
    if math.isnan(found.error):
        return math.nan, math.nan
    reach = two_sided_quantile(level, found.count - 1) * found.error
    return math.tanh(found.mean - reach), math.tanh(found.mean + reach)


def shares_at_least(values: Sequence[float], thresholds: Iterable[float]) -> list[float]:
    """Return, for each threshold, the share of values that reach it."""
    return [sum(value >= threshold for value in values) / len(values) for threshold in thresholds]


def _ratio(difference: float, error: float) -> float:
    if error:
        return difference / error
    return math.copysign(math.inf, difference) if difference else 0.0
