"""Settings: numbers that users give, checked once and with one message, and how they are written down.

Numbers of other libraries, such as numpy's, become Python's own, so that settings can be saved as they are. What is
written names runs (by its hash) and says whose a saved state is, so a setting that comes later must not change what was
written before it: see :func:`added`, and :func:`changed` for a default that is another one by now.
"""

import contextlib
import dataclasses
import inspect
import json
import math
from collections.abc import Callable, Iterable, Mapping
from fnmatch import fnmatchcase
from numbers import Integral, Real
from typing import Any

from anchorhold.errors import ConfigurationError, shortened

_ADDED, _AT_FIRST = "anchorhold_added", "anchorhold_at_first"
_LARGEST = 1e38


def added(default: Any) -> Any:
    """Return a field for a setting that its dataclass did not have at first.

    While it has its default it is left out of hashes and files, and where it is absent it is read as its default: runs
    keep their names, and states that were saved before it still load.

    >>> @dataclasses.dataclass(frozen=True)
    ... class Measured(anchorhold.measures.WeightMeasure):
    ...     share: float = 0.1
    ...     damping: float = added(0.0)
    """
    return dataclasses.field(default=default, metadata={_ADDED: True})


def changed(default: Any, *, at_first: Any) -> Any:
    """Return a field for a setting whose default is another one than its dataclass had at first.

    It is written whatever it is, so that what is written says which of both it has. What was left unsaid while the
    first one was the default still means that one: see :func:`defaults_at_first`.
    """
    return dataclasses.field(default=default, metadata={_AT_FIRST: at_first})


def defaults_at_first(kind: object) -> dict[str, Any]:
    """Return the settings of a dataclass whose defaults have changed, each with the one that it had at first.

    One derived from it that has a default of its own, or sets it by itself, has none of them.
    """
    found = {}
    if isinstance(kind, type) and dataclasses.is_dataclass(kind):
        changed_fields = [field for field in dataclasses.fields(kind) if _AT_FIRST in field.metadata]
        taken = inspect.signature(kind).parameters if changed_fields else {}
        for field in changed_fields:
            if field.name in taken and taken[field.name].default == field.default:
                found[field.name] = field.metadata[_AT_FIRST]
    return found


def default_of(kind: Any, setting: str) -> Any:
    """Return the default of a dataclass's setting."""
    return next(field.default for field in dataclasses.fields(kind) if field.name == setting)


def written(settings: Any) -> dict[str, Any]:
    """Return a dataclass's fields by name as they are written down: all but added ones that have their default."""
    later = added_names(type(settings))
    return {
        field.name: getattr(settings, field.name)
        for field in dataclasses.fields(settings)
        if not (field.name in later and getattr(settings, field.name) == field.default)
    }


def plain(what: str, settings: dict[str, Any]) -> dict[str, Any]:
    """Return settings as a file gives them back, tuples as lists, or refuse what no file can hold."""
    try:
        found: dict[str, Any] = json.loads(json.dumps(settings))
    except TypeError as error:
        raise ConfigurationError(
            f"The settings of {what} are {settings}; expected numbers, strings, lists of them or None, which a "
            f"saved state can hold ({error})."
        ) from error
    return found


def added_names(kind: type) -> set[str]:
    """Return the names of a dataclass's fields that may be absent from what was written."""
    return {field.name for field in dataclasses.fields(kind) if field.metadata.get(_ADDED)}


def check_keys(given: Mapping[str, Any], expected: Iterable[str], what: str, optional: Iterable[str] = ()) -> None:
    """Refuse a mapping that lacks a key or has one too many, and whatever is no mapping."""
    if not isinstance(given, Mapping):
        raise ConfigurationError(f"{what} is of type {type(given).__name__}; expected names with their values.")
    wanted = set(expected)
    missing, unknown = sorted(wanted - set(given) - set(optional)), sorted(set(given) - wanted)
    if missing:
        too_many = f" and has an unknown {', '.join(unknown)}" if unknown else ""
        raise ConfigurationError(f"{what} lacks {', '.join(missing)}{too_many}.")
    if unknown:
        raise ConfigurationError(
            f"{what} has an unknown {', '.join(unknown)}; expected exactly {', '.join(sorted(wanted))}."
        )


def check_fields(given: Mapping[str, Any], kind: type, what: str, *, more: Iterable[str] = ()) -> None:
    """Refuse a mapping that is not what :func:`written` gives for a dataclass, with some keys more."""
    names = [field.name for field in dataclasses.fields(kind)]
    check_keys(given, [*names, *more], what, optional=added_names(kind))


def require(condition: bool, given: str, expected: str) -> None:
    """Raise a :class:`~anchorhold.errors.ConfigurationError` unless a setting makes sense."""
    if not condition:
        raise ConfigurationError(f"{given}: expected {expected}.")


def yes_or_no(name: str, given: object) -> None:
    """Refuse a setting that is neither: any word is true, ``"no"`` too."""
    require(isinstance(given, bool), f"{name}={shortened(given)}", "True or False")


def choice(name: str, given: object, allowed: Iterable[str]) -> None:
    """Refuse a setting that is none of those that there are."""
    known = list(allowed)
    if given not in known:
        raise ConfigurationError(f"{name}={given!r}: expected one of {', '.join(map(repr, known))}.")


def whole_number(name: str, given: object, expected: str, least: int | None = None) -> int:
    """Return a setting as an ``int``, or say what was expected of it."""
    value = int(given) if not isinstance(given, bool) and isinstance(given, Integral) else None
    if value is None or (least is not None and value < least):
        raise _wrong(name, given, expected)
    return value


def number(name: str, given: object, expected: str, fits: Callable[[float], bool] | None = None) -> float:
    """Return a setting as a finite ``float``, or as the ``int`` that it is, or say what was expected of it.

    It has to fit into the floats of weights, which end at 3.4e38.
    """
    value = math.nan
    if not isinstance(given, bool) and isinstance(given, Real):
        with contextlib.suppress(OverflowError):  # of a whole number that is larger than any float
            value = float(given)
    if not math.isfinite(value) or (fits is not None and not fits(value)):
        raise _wrong(name, given, expected)
    if abs(value) > _LARGEST:
        raise _wrong(name, given, f"{expected}, and no larger than {_LARGEST:g}, for weights' floats end near it")
    return given if type(given) is int else value


def checked_share(name: str, given: object, expected: str = "a number from 0 to 1") -> float:
    """Return a part of the whole, or say what was expected: what 0 and 1 stand for, where that helps."""
    return float(number(name, given, expected, lambda share: 0 <= share <= 1))


def numbers_by_pattern(
    name: str, given: object, expected: str, fits: Callable[[float], bool] | None = None
) -> float | dict[str, float]:
    """Return a setting that is one number for all, or one for each of some patterns of names, or say what is wrong."""
    if not isinstance(given, Mapping):
        return float(number(name, given, expected, fits))
    if not given or not all(isinstance(pattern, str) for pattern in given):
        raise _wrong(name, given, expected)
    return {pattern: float(number(f"{name}[{pattern!r}]", own, expected, fits)) for pattern, own in given.items()}


def first_match(patterns: Iterable[str], name: str) -> str | None:
    """Return the first of some glob patterns that a name matches, which is the one that counts."""
    return next((pattern for pattern in patterns if fnmatchcase(name, pattern)), None)


def _wrong(name: str, given: object, expected: str) -> ConfigurationError:
    error = ConfigurationError(f"{name}={shortened(given)}: expected {expected}.")
    if isinstance(given, bool) or not isinstance(given, Real):
        # Its kind is wrong, whatever the other settings: the cause says so to those who ask.
        error.__cause__ = TypeError(f"{name} takes a number, not a {type(given).__name__}")
    return error
