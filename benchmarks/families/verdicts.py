"""What can be said of a family, from best to worst."""

import textwrap
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from anchorhold.errors import AnchorholdError, AnchorholdWarning

RIGHT = "right"
FALLBACK = "right, fallback"
RIGHTLY_REFUSED = "rightly refused"
COVERED = "tested"
WARNED = "warned"
REFUSED = "refused"
NOT_INSTALLED = "not installed"
NOT_RUN = "not run"
WRONG = "WRONG"
CRASHED = "crashed"

MEANINGS = {
    RIGHT: "the formula's numbers, by the engine's rules alone; of an optimiser, held and seen as it should be",
    FALLBACK: "the formula's numbers, some parameters through torch.func or one sample at a time: slower",
    RIGHTLY_REFUSED: "samples depend on each other, or steps cannot be seen; an error says so",
    COVERED: "by the tests that are named",
    WARNED: "a warning says what is not held or not seen",
    REFUSED: "an error says why; nothing is measured",
    NOT_INSTALLED: "a package is missing here",
    NOT_RUN: "the family itself does not run with these versions, or no test speaks of it",
    WRONG: "other numbers, and no error",
    CRASHED: "an error that is none of the library's own",
}
ORDER = list(MEANINGS)
BAD = (WRONG, CRASHED)


@dataclass(frozen=True)
class Outcome:
    """The verdict on a family, the largest relative difference from the formula, and what there is to say."""

    verdict: str
    difference: float | None = None
    notes: tuple[str, ...] = ()

    @staticmethod
    def of_error(error: Exception, about: str = "") -> "Outcome":
        """Refused, if the error is the library's own."""
        refused = isinstance(error, AnchorholdError)
        told = f"{type(error).__name__}: {short(error)}"
        return Outcome(REFUSED if refused else CRASHED, None, (f"{about}: {told}" if about else told,))


def worst(outcomes: list[Outcome]) -> Outcome:
    """Return the worst verdict, the largest difference, and all notes, each once."""
    verdict = max((outcome.verdict for outcome in outcomes), key=ORDER.index)
    differences = [outcome.difference for outcome in outcomes if outcome.difference is not None]
    notes = dict.fromkeys(note for outcome in outcomes for note in outcome.notes)
    return Outcome(verdict, max(differences, default=None), tuple(notes))


def attempted(make: Callable[[], Outcome]) -> Outcome:
    """Return the outcome of a family, whatever happens while it is made."""
    try:
        return make()
    except ImportError as error:
        return Outcome(NOT_INSTALLED, None, (short(error),))
    except Exception as error:  # noqa: BLE001 (a family that does not run is a row like any other)
        return Outcome(NOT_RUN, None, (f"{type(error).__name__}: {short(error)}",))


@dataclass
class Heard:
    """The library's own warnings, while something ran."""

    warnings: list[str] = field(default_factory=list)


@contextmanager
def listening() -> Iterator[Heard]:
    """Collect the library's warnings, and keep those of others quiet."""
    heard = Heard()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        yield heard
    heard.warnings += dict.fromkeys(short(w.message) for w in caught if issubclass(w.category, AnchorholdWarning))


def short(message: object, width: int = 200) -> str:
    """Return the beginning of a message, on one line and fit for a table."""
    return textwrap.shorten(str(message).replace("|", "\\|"), width, placeholder=" …")
