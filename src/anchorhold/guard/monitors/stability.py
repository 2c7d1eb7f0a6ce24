r"""Warn of a strength that would destroy the model: with SGD, a pull that overshoots the anchor by more at every step.

The bound is that of ``stepping/optimizers/effective_rate.py``. Optimizers that divide by a running mean of the
gradient's size, such as Adam, have none: the penalty's own gradient is in the mean that it is divided by, so that no
weight goes farther than about η in a step. What a strength does there that is too large is the subject of
``task_share.py``.
"""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

from torch.optim import Optimizer

from anchorhold.errors import warn
from anchorhold.guard.arguments.checked_arguments import may_be_implicit
from anchorhold.guard.monitor import OVERSHOOT, Monitor, Step
from anchorhold.guard.stepping.default_pull import supports_implicit
from anchorhold.guard.stepping.optimizers.effective_rate import largest_curvature, rounded_down, sgd_groups, sgd_rates

if TYPE_CHECKING:
    from anchorhold.guard.core import Core


class Stability(Monitor):
    """Check the steps of SGD, anew whenever the strength, Ω or the learning rate have changed."""

    name = "stability"

    def __init__(self, core: "Core") -> None:
        super().__init__(core)
        self._checked: WeakKeyDictionary[Optimizer, object] = WeakKeyDictionary()
        self._warned_of: dict[object, float] = {}
        """How far beyond the bound a strength was when the user was warned, by Ω's version and the strength."""

    def explain_nonfinite(self) -> str:
        """Name a strength that was found to be too large."""
        return _MAY_BE_WHY if self.core.runtime.warned.about(OVERSHOOT) else ""

    def before_step(self, step: Step) -> None:
        """Warn before a step that would be the first of ever larger swings."""
        core, optimizer, owned = self.core, step.optimizer, step.parameters
        if not core.state.is_anchored or not core.state.strength or core.state.implicit.value:
            return
        groups, rates = sgd_groups(optimizer), sgd_rates(optimizer)
        if not groups:
            return
        # Which adapters act is known by what has a gradient: a switch says nothing to the guard.
        acting = {n for n, p in owned.items() if p.grad is not None} if core.space.parts else set()
        known = (core.runtime.version, core.state.strength, rates, acting)
        if self._checked.get(optimizer) == known:
            return
        # What has no gradient is not moved away, and has nothing to swing back from.
        names = {id(parameter): name for name, parameter in owned.items() if parameter.grad is not None}
        largest = core.largest_importance
        for group, (rate, *_) in zip(groups, rates, strict=True):
            held = {names[id(p)] for p in group["params"] if id(p) in names} & largest.keys()
            if held and rate > 0:
                name = max(held, key=largest.__getitem__)
                self._check_group(optimizer, group, rate, name, largest[name])
        self._checked[optimizer] = known

    def _check_group(
        self, optimizer: Optimizer, group: Mapping[str, Any], rate: float, name: str, largest: float
    ) -> None:
        strengths = self.core.state.driving.strengths
        factor = 1.0 if strengths is None else strengths.factor([name])
        if not factor:  # nothing is held by the strongest of them
            return
        c, omega = self.core.state.strength * factor, largest / factor
        bound = largest_curvature(rate, group["momentum"], group["dampening"], nesterov=group["nesterov"])
        curvature = 2 * c * omega
        excess = (curvature + group["weight_decay"]) / bound
        # A schedule that changes the rate with every step is warned of once, and again when it has got much worse.
        warned_of = self._warned_of.get((self.core.runtime.version, c), 0.5)
        if excess <= 1 or excess < 2 * warned_of:
            return
        self._warned_of = {(self.core.runtime.version, c): excess}
        self.core.runtime.warned.add(OVERSHOOT, [name])
        momentum = f", momentum={group['momentum']:g}" if group["momentum"] else ""
        # The task's own curvature comes on top.
        most = rounded_down(0.5 * (bound - group["weight_decay"]) / (2 * omega))
        advice = f"Take a strength of {most:g} or less, a smaller lr" if most > 0 else "Take a smaller lr"
        warn(
            f"strength={c:g} is too much for SGD with lr={rate:g}{momentum}: for a weight of {name!r} with importance "
            f"{omega:.3g}, 2c·Ω is {curvature:.3g}, and beyond {bound:.3g} the pull overshoots the anchor by more at "
            f"every step, until weights are infinite. {advice}, {self._others(optimizer)}."
        )

    def _others(self, optimizer: Optimizer) -> str:
        """Return what else bears any strength."""
        adam = "Adam, which has no such bound"
        if not supports_implicit(self.core, optimizer):
            return f"or {adam}"
        core = self.core
        usual = may_be_implicit(core.state.driving.form, core.options.batch_norm, has_linear_term=core.has_linear_term)
        setting = "implicit=True, as it is by default with SGD" if usual else "implicit=True"
        return f"{adam}, or Guard(..., {setting}), whose pull cannot overshoot"


_MAY_BE_WHY = " That the strength is too much for SGD was told before, and may be why: then no batch is at fault."
