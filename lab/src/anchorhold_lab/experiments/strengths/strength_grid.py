"""The grid of strengths a·10ⁱ with a of 1, 2 or 5, and how a search walks on it.

Strengths are counted: 1 is number 0, then come 2, 5, 10, … upwards and 0.5, 0.2, 0.1, … downwards.
"""

import math
from collections.abc import Collection

from anchorhold.errors import ConfigurationError

_DIGITS = (1, 2, 5)
DECADE = len(_DIGITS)
FURTHEST_DECADES = 3
"""How far beyond its beginning a search goes on each side before it gives up."""
_SMALLEST, _LARGEST = 1e-30, 1e30  # three decades further, a strength still fits into a network's floats


def strength_of(number: int) -> float:
    """Return a strength of the grid."""
    exponent, place = divmod(number, DECADE)
    return float(f"{_DIGITS[place]}e{exponent}")  # read as a decimal, so that 0.2 is the 0.2 that people write


def numbers_around(strength: float) -> range:
    """Return the strengths of the grid up to a decade away from a strength."""
    number = _number_below(strength)
    return range(number - DECADE, number + DECADE + 1)


def numbers_between(low: float, high: float) -> range:
    """Return the strengths of the grid from ``low`` to ``high``, both included."""
    if not _SMALLEST <= low <= high <= _LARGEST:
        raise ConfigurationError(
            f"A search from {low:g} to {high:g}: expected two strengths from {_SMALLEST:g} to {_LARGEST:g}, the "
            "smaller one first, such as 0.1 and 10."
        )
    lowest, highest = _number_below(low), _number_below(high)
    found = range(lowest + (strength_of(lowest) < low), highest + 1)
    if not found:
        raise ConfigurationError(
            f"A search from {low:g} to {high:g} has no strength of the grid …, 0.1, 0.2, 0.5, 1, …; expected at least "
            f"one, such as {strength_of(lowest):g} or {strength_of(lowest + 1):g}."
        )
    return found


def numbers_to_try(tried: Collection[int], best: int, start: range) -> list[int]:
    """Return the strengths to try next: none once the best one has neighbours on both sides.

    On a side where the best is the last one, the grid is extended by a decade, until it reaches three decades beyond
    its start. On the other sides, everything between the best and what was tried next to it is filled in.

    Args:
        tried: the strengths that were tried.
        best: the best one of them.
        start: those that the search began with.
    """
    reach = FURTHEST_DECADES * DECADE
    below = max((number for number in tried if number < best), default=max(best - DECADE - 1, start[0] - reach - 1))
    above = min((number for number in tried if number > best), default=min(best + DECADE + 1, start[-1] + reach + 1))
    return [number for number in range(below + 1, above) if number != best]


def _number_below(strength: float) -> int:
    """Return the largest strength of the grid that is not above the given one."""
    number = DECADE * math.floor(math.log10(strength)) + DECADE  # its logarithm may be off by a rounding error
    while strength_of(number) > strength:
        number -= 1
    return number
