"""The way back to the anchor: the furthest point along it that is within a tolerance.

What is lost along a straight line need not rise steadily, so whatever is chosen has been measured; but it mostly does,
and halving finds the last point within to a thousandth of the way.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

HALVINGS = 10
GRID = (0.25, 0.5, 0.75)
"""Where else a point is looked for if the anchor itself is beyond the tolerance."""

NEARLY = 0.8
"""The part of a tolerance that counts as all of it."""
SURE = 0.2
"""The part of a tolerance that what is lost of other inputs may be off by without a word."""
LITTLE = 0.05
"""A share of the way that is next to nothing."""
_UNDONE = (
    "So nearly all that was learned is undone: the tolerance is too small for this task, or earlier ones have used it "
    "up. Allow more, or keep the inputs anew before a task."
)

_UNSURE = (
    "Other inputs {like} may have lost from {low} to {high}, by how much the kept ones differ (two standard "
    "errors): keep more of them where that matters."
)

_NEVER = (
    "Training never came near it: there was no more to lose, or the hold was too strong for so few steps. If too "
    "little of the new is learned, {weaker}, or train for longer."
)

_LET_GO = (
    "what is new asked for no more in the end, or the hold was let go too late to be used. If too little of the new is "
    "learned, {weaker}, or train for longer."
)

_TIGHTENED = (
    "the strength ended above the one that it began with, since what was lost early made it hold harder than the end "
    "asked for. If too little of the new is learned, {weaker}."
)

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
    """The relative strength that training began with, where it followed a tolerance."""
    tightened: bool = False
    """Whether the strength was larger when training ended than when it began."""
    error: float | None = None
    """The standard error of ``kl``, by its spread over the samples of that set."""
    least_sure: tuple[str, float, float] | None = None
    """Another kept set, of whose kind more may be lost, where there is one: its name, its KL, its standard error."""

    @property
    def was_touched(self) -> bool:
        """Whether the tolerance was reached at all, in training or at its end."""
        return max(self.kl_before, self.most_during_training or 0.0) > 0.5 * self.tolerance

    @property
    def is_undone(self) -> bool:
        """Whether next to nothing is left of what was learned."""
        return self.outcome == "pulled back" and self.share < LITTLE

    def __str__(self) -> str:
        if self.outcome == "cannot be met":
            assert self.nearest is not None
            return (
                f"The tolerance of {self.tolerance:g} nats cannot be met: {self.kl:.3g} are lost, "
                f"{self.nearest[1]:.3g} at the nearest point of the way back to the anchor (share "
                f"{self.nearest[0]:g}); nothing was moved. What is not protected, such as a head or running "
                "statistics, has changed, or the outputs had changed before training began, as where earlier tasks "
                "have used up the tolerance."
            )
        if self.outcome == "pulled back":
            undone = f" {_UNDONE}" if self.is_undone else ""
            return (
                f"Pulled back to {self.share:.3f} of the way from the anchor: {self.kl:.3g} nats are lost in place of "
                f"{self.kl_before:.3g}, with a tolerance of {self.tolerance:g}.{undone}{self._unsure()}"
            )
        within = f"{self.kl:.3g} nats are lost, within the tolerance of {self.tolerance:g}."
        return f"{within}{self._unused()}{self._unsure()}"

    @property
    def is_sure(self) -> bool:
        """Whether other inputs of the same kind are likely to have lost as much, but for a fifth of the tolerance."""
        return not self._open

    @property
    def _open(self) -> list[tuple[str, float, float]]:
        """Of what kinds others may have lost much more or less, with the KL and its error; the most first."""
        found = [] if self.error is None else [("of the same kind", self.kl, self.error)]
        if self.least_sure is not None:
            name, kl, error = self.least_sure
            found.insert(0, (f"like the kept set {name!r}", kl, error))
        return [each for each in found if 2 * each[-1] > SURE * self.tolerance]

    def _unsure(self) -> str:
        """Say what the kept inputs leave open, where that is much."""
        if not self._open:
            return ""
        like, kl, error = self._open[0]
        low, high = max(0.0, kl - 2 * error), kl + 2 * error
        return f" {_UNSURE.format(like=like, low=f'{low:.2g}', high=f'{high:.2g}')}"

    def _unused(self) -> str:
        """Say why less is lost than was allowed, where that is so."""
        start = self.start
        weaker = (
            "hold less" if start is None else f"begin weaker, with Tolerance({self.tolerance:g}, start={start / 10:g})"
        )
        if not self.was_touched:
            return f" {_NEVER.format(weaker=weaker)}"
        if self.kl >= NEARLY * self.tolerance:
            return ""
        most = self.most_during_training or 0.0
        where = f", where a look at some of the kept inputs in training had found {most:.3g}" if most > self.kl else ""
        why = (_TIGHTENED if self.tightened else _LET_GO).format(weaker=weaker)
        return f" That is {self.kl / self.tolerance:.0%} of it{where}: {why}"


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
