"""The library's own exceptions.

Every one of them derives from :class:`AnchorholdError`, and its message says what was given, what was expected and what
to do next. Whatever was consolidated before the error is still there after it.
"""


class AnchorholdError(Exception):
    """Base of every exception that anchorhold raises on purpose."""


class ConfigurationError(AnchorholdError, ValueError):
    """A setting has a value that makes no sense, such as a negative strength."""


class ProtectError(AnchorholdError, ValueError):
    """What was asked to be protected is not there, or is not what it was."""


class OptimizerError(AnchorholdError, ValueError):
    """An optimiser that cannot be observed, or that does not own what is protected."""


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


_READ = 200
"""How many characters of a value a message repeats."""


def shortened(given: object) -> str:
    """Return a value as it is written, without the middle of one that nobody would read to its end."""
    try:
        text = repr(given)
    except ValueError:  # Python writes out no whole number of more than 4300 digits
        return "a whole number of thousands of digits"
    return text if len(text) <= _READ else f"{text[: _READ // 2]}…{text[-_READ // 4 :]} ({len(text)} characters)"
