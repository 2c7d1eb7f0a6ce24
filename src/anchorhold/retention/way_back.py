"""The way back to the anchor: the furthest point along it that is within a tolerance.

What is lost along a straight line need not rise steadily, so whatever is chosen has been measured; but it mostly does,
and halving finds the last point within to a thousandth of the way.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from anchorhold.retention.diagnosis import diagnosis

HALVINGS = 10
GRID = (0.25, 0.5, 0.75)
"""Where else a point is looked for if the anchor itself is beyond the tolerance."""

SURE = 0.2
"""The part of a tolerance that what is lost of other inputs may be off by without a word."""
LITTLE = 0.05
"""A share of the way that is next to nothing."""

Outcome = Literal["within", "pulled back", "cannot be met"]


@dataclass(frozen=True)
class PulledBack:
    """Where a search along the line to the anchor ended."""

    outcome: Outcome
    """``"within"``: nothing was moved; ``"pulled back"``; or ``"cannot be met"``, also at the anchor, and then nothing
    was moved either."""
    share: float
    """How much of the way from the anchor is left: 1 for all of it."""
    kl: float
    """KL(p_old‖p_new) of the worst kept set there, in nats a sample or token."""
    kl_before: float
    """The same before."""
    tolerance: float
    nearest: tuple[float, float] | None = None
    """If it cannot be met: the share at which least is lost, and how much that is."""
    most_during_training: float | None = None
    """The largest KL that was seen in training since the last task ended, where any was, by looks at some inputs."""
    start: float | None = None
    """c·mean(Ω) that training began with, where it followed a tolerance."""
    tightened: bool = False
    """Whether the strength was larger when training ended than when it began."""
    error: float | None = None
    """The standard error of ``kl``, by its spread over the samples of that set."""
    least_sure: tuple[str, float, float] | None = None
    """Another kept set, of whose kind more may be lost, where there is one: its name, its KL, its standard error."""
    single: str | None = None
    """A kept set that is a single sample, where there is one: how far others of its kind are from it nobody can say."""
    at_first: float | None = None
    """What was lost before the first step of the task that was trained last, where that was looked at."""
    is_diagonal: bool = False
    """Whether weights were held one by one."""
    is_unproven: bool = False
    """Whether the worst kept set came from a file, so that it may have been kept with another model."""
    never_attached: bool = False
    """Whether the guard was attached to no optimizer, so that it has held no step."""

    @property
    def was_touched(self) -> bool:
        """Whether the tolerance was reached at all, in training or at its end."""
        return max(self.kl_before, self.most_during_training or 0.0) > 0.5 * self.tolerance

    @property
    def is_undone(self) -> bool:
        """Whether next to nothing is left of what was learned."""
        return self.outcome == "pulled back" and self.share < LITTLE

    @property
    def left_open(self) -> list[tuple[str, float, float]]:
        """Of what kinds others may have lost much more or less, with the KL and its error; the most first."""
        found = [] if self.error is None else [("of the same kind", self.kl, self.error)]
        if self.least_sure is not None:
            name, kl, error = self.least_sure
            found.insert(0, (f"like the kept set {name!r}", kl, error))
        return [each for each in found if 2 * each[-1] > SURE * self.tolerance]

    @property
    def is_sure(self) -> bool:
        """Whether other inputs of the same kind are likely to have lost as much, but for a fifth of the tolerance."""
        return not self.left_open and self.single is None

    def __str__(self) -> str:
        return diagnosis(self)


def furthest_within(
    lost_at: Callable[[float], float], tolerance: float, most_during_training: float | None = None
) -> PulledBack:
    """Return the furthest share of a way at which no more is lost than a tolerance, as far as halving finds it.

    Args:
        lost_at: measures what is lost at a share, from 0, the anchor, to 1.
        tolerance: how much may be.
        most_during_training: to be reported beside it.
    """
    before = lost_at(1.0)
    if before <= tolerance:
        return PulledBack("within", 1.0, before, before, tolerance, None, most_during_training)
    found = {0.0: lost_at(0.0)}
    if found[0.0] > tolerance:
        found |= {share: lost_at(share) for share in GRID}
        within = [share for share in GRID if found[share] <= tolerance]
        if not within:
            found[1.0] = before
            nearest = min(found, key=lambda share: (found[share], -share))
            kept = nearest, found[nearest]
            return PulledBack("cannot be met", 1.0, before, before, tolerance, kept, most_during_training)
        low = max(within)
    else:
        low = 0.0
    high = min([share for share in found if share > low and found[share] > tolerance], default=1.0)
    for _ in range(HALVINGS):
        middle = (low + high) / 2
        found[middle] = lost_at(middle)
        if found[middle] <= tolerance and not math.isnan(found[middle]):
            low = middle
        else:
            high = middle
    return PulledBack("pulled back", low, found[low], before, tolerance, None, most_during_training)
