"""The two controllers, and the two strengths that they may begin with."""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import anchorhold
from anchorhold.guard.arguments.strengths import strength_of_rate
from anchorhold.retention.controller import LEAST, Control, Tolerance
from studies.tolerance_dual.measurements import Following

CONTROLLERS = ("slowing", "dual")
STARTS = ("mean importance", "exchange rate 1")
AIM = Tolerance(1.0).aim
"""What both controllers hold the KL at, in tolerances."""


@dataclass
class DualAscent(Control):
    """Move log c by a clipped multiple of log(KL/target) at each look, at the same pace from first to last.

    log c is the logarithm of the dual variable of the constraint KL ≤ target, and the step is one of exponentiated
    gradient ascent, with the constraint's logarithm in the place of its violation.
    """

    multiple: float = 0.1
    clip: float = 0.2

    def follow(self, aim: float, most: float = math.inf) -> float:
        """Return the strength after a look, with the KL that it aims at; no more than ``most``."""
        error = math.log(max(self.worst, LEAST) / aim)
        self.log_c += min(max(self.multiple * error, -self.clip), self.clip)
        return self.bounded(most)


@dataclass(frozen=True)
class Follower:
    """A controller and the strength that it begins with.

    Args:
        controller: "slowing", the one that the library has, or "dual".
        start: "mean importance", the library's own, or "exchange rate 1".
        multiple: of dual ascent, what log(KL/target) is multiplied by at each look.
        clip: of dual ascent, the furthest that log c goes at a look.
    """

    controller: str
    start: str
    multiple: float = DualAscent.multiple
    clip: float = DualAscent.clip

    def take_over(self, guard: anchorhold.Guard, tokens: int) -> None:
        """Make a guard's strength follow so, after its first consolidation and before the task.

        Args:
            guard: one with a tolerance.
            tokens: how many scored tokens a sample has; 1 for a classifier.
        """
        control = DualAscent(multiple=self.multiple, clip=self.clip) if self.controller == "dual" else Control()
        if self.start == "exchange rate 1":
            control.begin(strength_of_rate(1.0, tokens))
        guard._core.state.control = control  # noqa: SLF001 (no user chooses between controllers)

    def found(self, guard: anchorhold.Guard, target: float) -> dict[str, Any]:
        """Return how the strength has followed."""
        trace = [(point.step, point.kl, point.strength) for point in guard.control.trace]
        looks = guard._core.state.control.looks  # noqa: SLF001 (of a long trace not all points are kept)
        return Following.of(trace, target, looks=looks)._asdict()


def followers() -> Iterator[Follower]:
    """Yield what is compared."""
    for start in STARTS:
        for controller in CONTROLLERS:
            yield Follower(controller, start)
