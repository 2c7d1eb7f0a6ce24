r"""Noticing a hold after steps that is so strong that weights stand still.

Pulled after a step, nothing diverges, however strong the hold: of all that lies between the weights and their anchor,
:math:`(1 + 2\eta cQ)^{-1}` is left (implicit steps, in ``holds/of_weights/implicit.py``). Where hold and task are in
balance that is nearly all of it. Where next to nothing is left, each step is undone whole, and nothing is learned.
"""

from collections.abc import Mapping

from torch import Tensor, nn
from torch.optim import Optimizer

from anchorhold.guard.memory import Memory
from anchorhold.guard.noticing.distances import how_far
from anchorhold.guard.noticing.task_share import LATER, LEAST, STEPS
from anchorhold.guard.noticing.telling import is_capturing, tell


class Standstill:
    """Compares how far weights are from their anchor before a pull and after it, in two steps of each task.

    The eighth is one, and one much later the other: rates that warm up leave the first ones next to nothing to pull
    with.
    """

    def __init__(self, memory: Memory) -> None:
        self.memory = memory
        self._before: Tensor | None = None
        self._told: float | None = None
        """The strength that was told of."""

    def before_pull(self, owned: Mapping[str, nn.Parameter]) -> None:
        """Note how far weights are from where they are held, after the optimiser's own step."""
        memory, self._before = self.memory, None
        step = max((memory.steps.get(name, 0) for name in owned), default=0)  # it is counted already
        # A tolerance looks after its strength, and a hold that leans has its centre elsewhere.
        if step not in (STEPS, LATER) or memory.tolerance is not None or memory.tilt or is_capturing():
            return
        if memory.strength and self._told != memory.strength:
            self._before = how_far(self.memory, owned)[0]

    def after_pull(self, optimizer: Optimizer, owned: Mapping[str, nn.Parameter]) -> None:
        """Look at what the pull has left of it, and say if that is next to nothing."""
        before, self._before = self._before, None
        if before is None:
            return
        left = float(how_far(self.memory, owned)[0] / before)
        if left < LEAST:  # not where nothing has moved at all, which is 0 / 0
            self._told = c = self.memory.strength
            tell(
                _TOO_STRONG.format(c=c, less=c / 100, kind=type(optimizer).__name__, left=100 * left, least=100 * LEAST)
            )


_TOO_STRONG = (
    "strength={c:g} is far too much for this task: of all that lies between the weights and where they are held, "
    "{kind}'s step included, the pull after the step leaves {left:.2g} %, and expected are {least:g} % or more. "
    "Nothing diverges, and next to nothing is learned. Take a smaller strength, {less:g} to begin with, or "
    "Guard(..., tolerance=), which finds one."
)
