"""Student's t distribution, in the standard library's arithmetic.

A p-value is printed wherever a report is, and these few lines spare it a dependency on scipy, against which they are
tested.
"""

import math

_TINY = 1e-300
"""Stands for 0 where a continued fraction would divide by it."""


def two_sided_p(t: float, freedom: float) -> float:
    r"""Return the probability of a value at least as far from 0 as t, with so many degrees of freedom ν.

    That is :math:`I_x(\nu/2, 1/2)` at :math:`x = \nu/(\nu+t^2)`, the regularised incomplete beta function.
    """
    if math.isnan(t) or math.isnan(freedom):
        return math.nan
    if math.isinf(t):
        return 0.0
    whole = freedom + t * t
    return _incomplete_beta(freedom / 2, 0.5, freedom / whole, t * t / whole)


def two_sided_quantile(level: float, freedom: float) -> float:
    """Return the t that a value exceeds, on either side of 0, with probability 1 - level."""
    low, high = 0.0, 1.0
    while two_sided_p(high, freedom) > 1 - level:
        low, high = high, 2 * high
    while (middle := (low + high) / 2) not in (low, high):
        if two_sided_p(middle, freedom) > 1 - level:
            low = middle
        else:
            high = middle
    return high


def _incomplete_beta(a: float, b: float, x: float, rest: float) -> float:
    """Return I_x(a, b), given 1 - x as well: near x = 1 its digits would be lost."""
    if x == 0 or rest == 0:
        return float(rest == 0)
    # The fraction converges fast on this side of the distribution's mean only.
    if x > (a + 1) / (a + b + 2):
        return 1 - _incomplete_beta(b, a, rest, x)
    front = a * math.log(x) + b * math.log(rest) + math.lgamma(a + b) - math.lgamma(a) - math.lgamma(b)
    return math.exp(front) / a / _continued_fraction(a, b, x)


def _continued_fraction(a: float, b: float, x: float) -> float:
    """Return the fraction 1 + d₁/(1 + d₂/(1 + …)) of the incomplete beta function, by Lentz's method."""
    value, c, d = 1.0, 1.0, 0.0
    for i in range(1, 100_000):
        m = i // 2
        if i % 2:
            term = -(a + m) * (a + b + m) * x / ((a + 2 * m) * (a + 2 * m + 1))
        else:
            term = m * (b - m) * x / ((a + 2 * m - 1) * (a + 2 * m))
        d = 1 / (1 + term * d or _TINY)
        c = 1 + term / c or _TINY
        value *= c * d
        if abs(c * d - 1) < 1e-15:
            break
    return value
