"""Checking numbers that users give, once and with one message.

Numbers of other libraries, such as numpy's, become Python's own, so that a measure's settings can be saved as they are.
"""

import contextlib
import math
from collections.abc import Callable
from numbers import Integral, Real

from holdfast.errors import ConfigurationError


def require(condition: bool, given: str, expected: str) -> None:
    """Raise a :class:`~holdfast.errors.ConfigurationError` unless a setting makes sense."""
    if not condition:
        raise ConfigurationError(f"{given}: expected {expected}.")


def whole_number(name: str, given: object, expected: str, least: int | None = None) -> int:
    """Return a setting as an ``int``, or say what was expected of it."""
    value = int(given) if not isinstance(given, bool) and isinstance(given, Integral) else None
    if value is None or (least is not None and value < least):
        raise _wrong(name, given, expected)
    return value


def number(name: str, given: object, expected: str, fits: Callable[[float], bool] | None = None) -> float:
    """Return a setting as a finite ``float``, or as the ``int`` that it is, or say what was expected of it."""
    value = math.nan
    if not isinstance(given, bool) and isinstance(given, Real):
        with contextlib.suppress(OverflowError):  # of a whole number that is larger than any float
            value = float(given)
    if not math.isfinite(value) or (fits is not None and not fits(value)):
        raise _wrong(name, given, expected)
    return given if type(given) is int else value


def _wrong(name: str, given: object, expected: str) -> ConfigurationError:
    error = ConfigurationError(f"{name}={given!r}: expected {expected}.")
    if isinstance(given, bool) or not isinstance(given, Real):
        # Its kind is wrong, whatever the other settings: the cause says so to those who ask.
        error.__cause__ = TypeError(f"{name} takes a number, not a {type(given).__name__}")
    return error
