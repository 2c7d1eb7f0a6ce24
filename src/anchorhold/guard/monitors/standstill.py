r"""Warn of a hold after steps that is so strong that weights stand still.

Pulled after a step, nothing diverges, however strong the hold: of all that lies between the weights and their anchor,
:math:`(1 + 2\eta cQ)^{-1}` is left (implicit steps, in ``holds/of_weights/quadratic.py``). Where hold and task are in
balance that is nearly all of it. Where next to nothing is left, each step is undone whole, and nothing is learned.
"""

from typing import TYPE_CHECKING

from torch import Tensor

from anchorhold.errors import warn
from anchorhold.guard.monitor import FIRST_STEPS, LATER_STEP, LEAST_SHARE, Monitor, Step, is_capturing
from anchorhold.guard.monitors.distances import how_far

if TYPE_CHECKING:
    from anchorhold.guard.core import Core


class Standstill(Monitor):
    """Compare how far weights are from their anchor before a pull and after it, in two steps of each task.

    The eighth is one, and one much later the other: rates that warm up leave the first ones next to nothing to pull
    with.
    """

    name = "standstill"

    def __init__(self, core: "Core") -> None:
        super().__init__(core)
        self._before: Tensor | None = None
        self._warned_of: float | None = None
        """The strength that the user was warned of."""

    def before_pull(self, step: Step) -> None:
        """Note how far weights are from where they are held, after the optimizer's own step."""
        core, self._before = self.core, None
        steps, every = step.taken + 1, core.state.pull_every.value
        is_looked_at = any(first <= steps < first + every for first in (FIRST_STEPS, LATER_STEP))
        if not core.state.pulled_after or not is_looked_at or is_capturing():
            return
        # A tolerance looks after its strength, and a hold with a linear term has its centre elsewhere.
        if core.state.tolerance is None and not core.state.linear_term and self._warned_of != core.state.strength:
            self._before = how_far(core, step.parameters)[0]

    def after_pull(self, step: Step) -> None:
        """Warn if the pull has left next to nothing of it."""
        before, self._before = self._before, None
        if before is None:
            return
        left = float(how_far(self.core, step.parameters)[0] / before)
        every = self.core.state.pull_every.value
        if every > 1 and left > 0:  # what a pull for one step would leave, to compare it with the same bound
            left = 1 / (1 + (1 / left - 1) / every)
        if left < LEAST_SHARE:  # not where nothing has moved at all, which is 0 / 0
            self._warned_of = c = self.core.state.strength
            kind = type(step.optimizer).__name__
            warn(_TOO_STRONG.format(c=c, less=c / 100, kind=kind, left=100 * left, least=100 * LEAST_SHARE))


_TOO_STRONG = (
    "strength={c:g} is far too much for this task: of all that lies between the weights and where they are held, "
    "{kind}'s step included, the pull after the step leaves {left:.2g} %, and expected are {least:g} % or more. "
    "Nothing diverges, and next to nothing is learned. Take a smaller strength, {less:g} to begin with, or "
    "Guard(..., tolerance=), which finds one."
)
