"""The recipes that are followed from one kind to the next, each with two tries.

The tries are those that did best where English was followed by Python alone (``results/recipes.md``), so that here only
two have to be compared, of each recipe as many.
"""

import itertools
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from benchmarks.language.recipes import OLD, ROTATED, Trial

FREE = "fine-tuning"
"""What everything else is compared with, so that it comes first."""


@dataclass(frozen=True)
class Keeping:
    """A way of keeping all kinds from before."""

    name: str
    strengths: tuple[float, ...] = (0.0,)
    """Of its guard, relative to the mean importance of the first kind."""
    olds: tuple[float, ...] = (OLD,)
    """Shares of a step that are old or own text."""
    guard: str | None = None
    """One of the forms; each kind is measured when it has been learned, and the guard holds their sum."""
    measured_on: Literal["kind", "own"] = "kind"
    text: Literal["old", "own"] | None = None
    """Pieces of each kind from before, or what the network wrote itself after each."""
    distilled: bool = False
    """Whether what the network said of that text is its target, in the place of the text's next bytes."""
    averaged: bool = True
    """Whether weights go back towards those before each lesson, just so far that enough of the new is left."""

    def trials(self) -> Iterator[Trial]:
        """Yield what is to be run."""
        for strength, old in itertools.product(self.strengths, self.olds if self.text else (0.0,)):
            yield Trial(self.name, strength, old)

    @property
    def reads_old_text(self) -> bool:
        """Whether training needs text from before."""
        return self.text == "old"


TRIED = (1e-3, 3e-3)
KEEPINGS = (
    Keeping(FREE, averaged=False),
    Keeping("averaging"),
    Keeping("own text distilled, rotated, averaged", TRIED, guard=ROTATED, text="own", distilled=True),
    Keeping("rotated, averaged", TRIED, guard=ROTATED),
    Keeping("own text distilled, averaged", olds=(1 / 4, 1 / 8), text="own", distilled=True),
    Keeping("old text replayed, averaged", olds=(1 / 8, 1 / 4), text="old"),
    Keeping("own text distilled, rotated by it, averaged", TRIED, (OLD,), ROTATED, "own", "own", distilled=True),
    Keeping("own text distilled, rotated", TRIED, guard=ROTATED, text="own", distilled=True, averaged=False),
)
"""In order of worth."""
