"""The library's own exceptions.

Every one of them derives from :class:`AnchorholdError`, and its message says what was given, what was expected and what
to do next. Whatever was consolidated before the error is still there after it.

``warn()`` gives the warnings, and ``Warned`` remembers them, so that none is given twice.
"""

import sys
import warnings
from collections.abc import Hashable, Iterable

__all__ = [
    "AnchorholdError",
    "AnchorholdWarning",
    "BatchError",
    "ClusterError",
    "ConfigurationError",
    "DamagedError",
    "DataError",
    "MissingExtraError",
    "ModelError",
    "NotFiniteError",
    "OptimizerError",
    "OrderError",
    "ProtectError",
    "StateError",
    "StoreError",
]


class AnchorholdError(Exception):
    """Base of every exception that anchorhold raises on purpose."""


class ConfigurationError(AnchorholdError, ValueError):
    """A setting has a value that makes no sense, such as a negative strength."""


class ProtectError(AnchorholdError, ValueError):
    """What was asked to be protected is not there, or is not what it was."""


class OptimizerError(AnchorholdError, ValueError):
    """An optimizer that cannot be observed, or that does not own what is protected."""


class BatchError(AnchorholdError, ValueError):
    """A batch that cannot be read, or lacks the labels that a measure needs."""


class ModelError(AnchorholdError, ValueError):
    """A model whose samples cannot be told apart, so that no per-sample gradient exists."""


class NotFiniteError(AnchorholdError, ArithmeticError):
    """A NaN or an infinity where a number was needed."""


class OrderError(AnchorholdError, RuntimeError):
    """A call that came too early or too late."""


class StateError(AnchorholdError, ValueError):
    """A saved state that is damaged, of another version, or of another model."""


class DataError(AnchorholdError, ValueError):
    """A data set that is missing, damaged, or not what it claims to be."""


class StoreError(AnchorholdError, OSError):
    """A store of results that cannot be written or read: full, read-only, or damaged from outside."""


class DamagedError(StoreError):
    """A file in a store that cannot be used: it was changed, cut short or copied there from outside."""


class ClusterError(AnchorholdError, RuntimeError):
    """A Ray cluster that ended while runs were under way; what had arrived of them is in the store."""


class MissingExtraError(AnchorholdError, ImportError):
    """Something that needs a package which anchorhold does not install by itself."""


class AnchorholdWarning(UserWarning):
    """Something that is legal but probably not what was meant."""


_PASSED_OVER = {
    *("anchorhold", "torch", "contextlib", "functools"),
    *("accelerate", "lightning", "pytorch_lightning", "transformers", "trl"),
}
"""Packages whose lines a warning does not point to: the user has not written them."""


def warn(message: str) -> None:
    """Warn at the user's own line, however deep within torch or a trainer the library was called."""
    frame, level = sys._getframe(1), 2  # noqa: SLF001 (the warnings module does the same)
    while frame.f_back is not None and str(frame.f_globals.get("__name__", "")).partition(".")[0] in _PASSED_OVER:
        frame, level = frame.f_back, level + 1
    warnings.warn(message, AnchorholdWarning, stacklevel=level)


class Warned:
    """The warnings that a user was given, by kind and by what they were about."""

    def __init__(self) -> None:
        self._about: dict[str, set[Hashable]] = {}

    def once(self, kind: str, message: str, about: Hashable = None) -> None:
        """Warn, unless a warning of this kind was given about the same thing."""
        if about not in self.about(kind):
            self.add(kind, [about])
            warn(message)

    def about(self, kind: str) -> frozenset[Hashable]:
        """Return what warnings of this kind were about."""
        return frozenset(self._about.get(kind, ()))

    def add(self, kind: str, about: Iterable[Hashable]) -> None:
        """Note warnings of a kind."""
        self._about.setdefault(kind, set()).update(about)

    def drop(self, *kinds: str) -> None:
        """Let warnings of these kinds be given again."""
        for kind in kinds:
            self._about.pop(kind, None)


_READ = 200
"""How many characters of a value a message repeats."""


def shortened(given: object) -> str:
    """Return a value as it is written, without the middle of one that nobody would read to its end."""
    try:
        text = repr(given)
    except ValueError:  # Python writes out no whole number of more than 4300 digits
        return "a whole number of thousands of digits"
    return text if len(text) <= _READ else f"{text[: _READ // 2]}…{text[-_READ // 4 :]} ({len(text)} characters)"
