"""The types of a state's plain values: how each is checked, and its words for errors and the documentation."""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from anchorhold.errors import ConfigurationError
from anchorhold.guard.arguments.checked_arguments import checked_decay
from anchorhold.guard.arguments.strengths import LARGEST, PatternStrengths, checked_exchange_rate, checked_strength
from anchorhold.settings import number


@dataclass(frozen=True)
class ValueType:
    """A type of values."""

    words: str
    """What a value has to be, for errors and the documentation."""
    check: Callable[[str, Any], object]
    """Raise :class:`~anchorhold.errors.ConfigurationError` if the value of a key is not of this type."""


def shown(value: object) -> str:
    """Return a value as an error shows it, the end cut off where it is long."""
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:80]}…"


def is_number(value: object) -> bool:
    """Return whether a value is a finite number."""
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def _tested(words: str, fits: Callable[[Any], bool]) -> ValueType:
    """Return the type of the values that pass a test."""

    def check(key: str, value: object) -> None:
        if not fits(value):
            raise ConfigurationError(f"its {key} are {shown(value)}; expected {words}.")

    return ValueType(words, check)


def checked_later(words: str) -> ValueType:
    """Return a type whose values are checked where they are compared with the guard's own, or read."""
    return ValueType(words, lambda _key, _value: None)


def _check_patterns(_key: str, pairs: Any) -> None:
    """Raise ConfigurationError unless these are pairs, whose order counts, of a pattern and a strength."""
    if not _is_list_of(lambda pair: _is_pair(pair) and _is_text(pair[0]))(pairs):
        raise ConfigurationError(f"its strengths are {shown(pairs)}; expected pairs of a pattern and a number.")
    checked_strength(dict(pairs))
    PatternStrengths(dict(pairs))


def _is_count(value: object) -> bool:
    return type(value) is int and value >= 0


def _is_text(value: object) -> bool:
    return isinstance(value, str)


def _is_pair(value: Any) -> bool:
    return isinstance(value, list | tuple) and len(value) == 2


def _is_waiting(pair: Any) -> bool:
    """Return whether this is a number of steps and Σ c·h of them."""
    return _is_pair(pair) and _is_count(pair[0]) and is_number(pair[1]) and pair[1] >= 0


def _is_list_of(fits: Callable[[Any], bool]) -> Callable[[object], bool]:
    return lambda value: isinstance(value, list | tuple) and all(map(fits, value))


def _maps_names_to(fits: Callable[[object], bool]) -> Callable[[object], bool]:
    return lambda value: isinstance(value, Mapping) and all(isinstance(k, str) and fits(v) for k, v in value.items())


def _has_each_once(names: list[Any] | tuple[Any, ...]) -> bool:
    return all(map(_is_text, names)) and len(set(names)) == len(names)


def _are_marks(value: Any) -> bool:
    """Return whether these are pairs of a name, each once, and numbers."""
    if not _is_list_of(_is_pair)(value):
        return False
    return _is_list_of(_is_list_of(is_number))([marks for _, marks in value]) and _has_each_once([n for n, _ in value])


STRENGTH = ValueType(
    "a number from 0 to 1e38",
    lambda _, value: number("strength", value, "a number from 0 to 1e38", lambda c: 0 <= c <= LARGEST),
)
DECAY = ValueType("a number from 0 to 1", lambda _, value: checked_decay(value))
PATTERNS = ValueType("pairs of a pattern and a number", _check_patterns)
RELATIVE = ValueType(
    "a number above 0, up to 1e38",
    lambda key, value: number(key, value, "a number above 0, up to 1e38", lambda s: 0 < s <= LARGEST),
)
RATE = ValueType("a number from 1e-38 to 1e38", lambda _, value: checked_exchange_rate(value))
COUNT = _tested("a whole number, 0 or more", _is_count)
TRUTH = _tested("true or false", lambda value: isinstance(value, bool))
MEASURE = _tested("a measure's name", _is_text)
MEASURES = _tested(
    "measures by name, with their settings", _maps_names_to(lambda settings: isinstance(settings, Mapping))
)
STEPS = _tested("whole numbers by parameter, 0 or more", _maps_names_to(_is_count))
WAITING = _tested(
    "by parameter a whole number of steps and a number of at least 0",
    _maps_names_to(_is_waiting),
)
EVERY = _tested("a whole number, at least 1", lambda value: _is_count(value) and value >= 1)
DISTINCT = _tested("each name once", lambda value: isinstance(value, list | tuple) and _has_each_once(value))
TENSORS = _tested("tensors by name", _maps_names_to(lambda value: isinstance(value, Tensor)))
WORDS = _tested("a strength in words", _is_text)
TOLERANCE = _tested(
    "its nats, a number above 0, and how it is followed",
    lambda value: isinstance(value, Mapping) and is_number(value.get("nats")) and value["nats"] > 0,
)
TOKENS = _tested("numbers of at least 1", _is_list_of(lambda tokens: is_number(tokens) and 1 <= tokens <= LARGEST))
MARKS = _tested("each name once, with numbers", _are_marks)
CONTROL = _tested(
    "plain values by name", _maps_names_to(lambda value: value is None or isinstance(value, int | float | list))
)
AVERAGES = _tested("numbers of tasks by measure and block", _maps_names_to(_maps_names_to(is_number)))
ELEMENTS = _tested("numbers by parameter", _maps_names_to(_is_list_of(is_number)))
NAMES = _tested("a list of names", _is_list_of(_is_text))
LABELS = _tested("a list of whole numbers", _is_list_of(lambda label: type(label) is int))
LAYERS = _tested("layers by batch norm", _maps_names_to(_is_text))
