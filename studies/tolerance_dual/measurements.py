"""How a strength has followed a tolerance, from the trace of its looks."""

from collections.abc import Sequence
from typing import NamedTuple

NEAR = 0.3
"""A look is near the target if it is within this share of it."""


class Following(NamedTuple):
    """How the looks of one run went."""

    looks: int
    """How often kept inputs were looked at."""
    until_near: int | None
    """How many looks it took until one was near the target; None if none was."""
    above: float
    """The share of looks that were more than ``NEAR`` above the target."""
    peak: float
    """The largest KL of a look, in targets."""
    first: float
    """The strength that the run began with."""
    last: float

    @classmethod
    def of(cls, trace: Sequence[tuple[int, float, float]], target: float, *, looks: int) -> "Following":
        """Return it from the points of a trace, the first of which is from before the first step."""
        seen = [kl / target for _, kl, _ in trace[1:]]
        near = next((number for number, ratio in enumerate(seen, 1) if abs(ratio - 1) <= NEAR), None)
        return cls(
            looks,
            near,
            sum(ratio > 1 + NEAR for ratio in seen) / max(1, len(seen)),
            max(seen, default=0.0),
            trace[0][2],
            trace[-1][2],
        )
