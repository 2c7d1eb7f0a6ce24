r"""Warn of weights that are far beyond any place where they are held, whatever the optimizer.

What torch's SGD bears is known beforehand (``stability.py``), and what divides by the size of the gradient bears any
strength. Of others, such as ASGD, a schedule-free SGD or an optimizer of one's own, nothing is known until weights have
been thrown past their anchor by more at every step for a while.
"""

from collections.abc import Mapping
from typing import TYPE_CHECKING
from weakref import WeakKeyDictionary

from torch import Tensor, nn
from torch.optim import Optimizer

from anchorhold.errors import warn
from anchorhold.guard.monitor import FIRST_STEPS, OVERSHOOT, Monitor, Step, is_capturing
from anchorhold.guard.monitors.distances import displacements, times_away
from anchorhold.measures import FineTune
from anchorhold.tensors.storage import widest_dtype

if TYPE_CHECKING:
    from anchorhold.guard.core import Core

FAR = 100.0
"""Times their own size. Training that goes well ends within a few."""


class Runaway(Monitor):
    """Look at each doubling of the steps how far weights are from their anchor, and how the last step got there.

    Far from a small anchor, such as a layer scale that has hardly been trained, training that goes well ends too. A
    pull that is too much throws weights from one side of the anchor to the other, and farther.
    """

    name = "runaway"

    def __init__(self, core: "Core") -> None:
        super().__init__(core)
        self._warned_of: float | None = None
        """The strength that the user was warned of."""
        self._before: WeakKeyDictionary[Optimizer, list[Tensor]] = WeakKeyDictionary()
        """Some of θ − θ*, a step before a look, where that is far."""

    def before_step(self, step: Step) -> None:
        """Warn if weights have run away by now, with a hold in the gradient."""
        core, optimizer, owned = self.core, step.optimizer, step.parameters
        if (
            core.state.implicit.value
            or not core.state.strength
            or self._warned_of == core.state.strength
            or is_capturing()
        ):
            return
        # An optimizer with a closure sees the penalty's value, and goes by it.
        if step.closure or core.runtime.warned.about(OVERSHOOT) or isinstance(core.state.driving.measure, FineTune):
            return
        steps, before = step.taken, self._before.pop(optimizer, None)
        # Few steps are looked at, since an accelerator waits for that.
        if steps >= FIRST_STEPS - 1 and not (steps + 1) & steps:
            if times_away(core, owned, adapters=True) > FAR:
                self._before[optimizer] = _places(core, owned)
        elif (
            before and (far := times_away(core, owned, adapters=True)) > FAR and _is_thrown_across(core, owned, before)
        ):
            self._warned_of = c = core.state.strength
            warn(_RUN_AWAY.format(c=c, kind=type(optimizer).__name__, steps=steps, far=far))

    def explain_nonfinite(self) -> str:
        """Name the distance of weights that have run away."""
        far = times_away(self.core, self.core.runtime.parameters, adapters=True)
        return _MAY_BE_WHY.format(far=far) if far > FAR and self.core.state.strength else ""


def _places(core: "Core", owned: Mapping[str, nn.Parameter]) -> list[Tensor]:
    return [apart.to(widest_dtype(apart.device)) for apart, *_ in displacements(core, owned, adapters=True)]


def _is_thrown_across(core: "Core", owned: Mapping[str, nn.Parameter], before: list[Tensor]) -> bool:
    """Whether a step has led to the other side of the anchor, and farther away."""
    now = _places(core, owned)
    if [apart.shape for apart in now] != [apart.shape for apart in before]:
        return False
    return sum(float((here * then + then.square()).sum()) for here, then in zip(now, before, strict=True)) < 0


_RUN_AWAY = (
    "After {steps} steps of this task weights are {far:.3g} times their own size away from where they are held: with "
    "{kind}, strength={c:g} or the learning rate is too much, and a pull that overshoots by more at every step ends in "
    "weights that are infinite. Take a smaller one. With torch's SGD, after whose steps a guard holds by default, and "
    "with Adam no strength diverges."
)
_MAY_BE_WHY = (
    " Weights are {far:.3g} times their own size away from where they are held: a strength or a learning rate that is "
    "too large may be why, and then no batch is at fault."
)
