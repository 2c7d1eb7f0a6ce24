r"""The integral of a gradient along a straight step, by Simpson's rule, in intervals that are split where it is off.

With θ(s) = θ + sΔ and an interval from a to b with the middle m, Simpson's rule takes
:math:`\int_a^b \nabla L(\theta(s))\,ds` to be (b − a)/6 · [∇L(θ(a)) + 4∇L(θ(m)) + ∇L(θ(b))], which is exact where the
loss is a polynomial of up to the fourth degree along the step. Times −Δ and summed over all weights it should be
L(θ(a)) − L(θ(b)), and that is how its error is known.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from anchorhold_lab.analysis.whole_loss import Point


@dataclass(frozen=True)
class Integral:
    """What Simpson's rule gives for one step."""

    gradient: dict[str, Tensor]
    """The mean of ∇L over the step, by name."""
    splits: int
    """How often an interval was split."""
    error: float
    """How far the intervals' sums over all weights are from the loss's decreases over them, added up."""


class _Interval:
    """A stretch of the step with the loss and its gradient at both ends and in the middle."""

    def __init__(
        self, start: float, stop: float, ends: tuple[Point, Point], middle: Point, move: Mapping[str, Tensor]
    ) -> None:
        self.start, self.stop = start, stop
        self.first, self.middle, self.last = ends[0], middle, ends[1]
        found = sum(float((-move[name] * value).sum()) for name, value in self.integral().items())
        self.error = abs(found - (self.first.loss - self.last.loss))

    def integral(self) -> dict[str, Tensor]:
        """Return the integral of ∇L over the interval."""
        sixth = (self.stop - self.start) / 6
        first, middle, last = self.first.gradient, self.middle.gradient, self.last.gradient
        return {name: (first[name] + 4 * middle[name] + last[name]) * sixth for name in first}


def integrate(
    ends: tuple[Point, Point],
    at: Callable[[float], Point],
    move: Mapping[str, Tensor],
    tolerance: float,
    most_splits: int,
) -> Integral:
    """Integrate ∇L along a step, splitting the interval that is furthest off until the errors add up to little enough.

    Args:
        ends: loss and gradient at both ends of the step.
        at: gives them at a part s of the step, from 0 to 1.
        move: Δ by name, in float64.
        tolerance: what the errors of all intervals may add up to, in units of the loss.
        most_splits: where to give up.
    """
    intervals = [_Interval(0.0, 1.0, ends, at(0.5), move)]
    while sum(interval.error for interval in intervals) > tolerance and len(intervals) <= most_splits:
        worst = max(intervals, key=lambda interval: interval.error)
        intervals.remove(worst)
        middle = (worst.start + worst.stop) / 2
        for start, stop, first, last in (
            (worst.start, middle, worst.first, worst.middle),
            (middle, worst.stop, worst.middle, worst.last),
        ):
            intervals.append(_Interval(start, stop, (first, last), at((start + stop) / 2), move))
    parts = [interval.integral() for interval in intervals]
    mean = {name: torch.stack([part[name] for part in parts]).sum(0) for name in move}
    return Integral(mean, len(intervals) - 1, sum(interval.error for interval in intervals))
