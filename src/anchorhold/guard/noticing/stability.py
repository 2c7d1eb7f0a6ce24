r"""Noticing a strength that would destroy the model: with SGD, a pull that overshoots the anchor by more at every step.

Beside the task's gradient, the penalty of one weight is a quadratic of curvature :math:`\lambda = 2c\,\Omega`, and SGD
on a quadratic is a linear recurrence, stable where the roots of its characteristic polynomial lie within the unit
circle. With learning rate η, momentum μ and dampening d that is

.. math:: \eta(1-d)\lambda < 2(1+\mu), \qquad\text{and with Nesterov's}\quad \eta\lambda < \frac{2(1+\mu)}{1+2\mu}.

Optimisers that divide by a running mean of the gradient's size, such as Adam, have no such bound: the penalty's own is
in the mean that it is divided by, so that no weight goes farther than about η in a step, and a pull that is too
strong swings around the anchor by so much instead. It does harm in another way. Where the pull is most of the gradient,
the task's part of a step is as small as its part of that mean, in all weights of which that holds, so that little is
learned until the pull has died down. An implicit hold, which is not in the gradient, has neither.
"""

import math
from collections.abc import Mapping
from typing import Any, TypeGuard
from weakref import WeakKeyDictionary

from torch import nn
from torch.optim import SGD, Optimizer

from anchorhold.errors import ConfigurationError, OptimizerError
from anchorhold.guard.arguments.checked_arguments import checked_implicit, may_be_implicit
from anchorhold.guard.memory import Memory
from anchorhold.guard.noticing.telling import tell
from anchorhold.guard.steps.optimizers.reach import check_reach


class Stability:
    """Checks the steps of SGD, anew whenever the strength, Ω or the learning rate have changed."""

    def __init__(self, memory: Memory) -> None:
        self.memory = memory
        self._checked: WeakKeyDictionary[Optimizer, object] = WeakKeyDictionary()
        self._told: dict[object, float] = {}
        """How far beyond the bound was told of, by what Ω and the strength are."""

    @property
    def has_told(self) -> bool:
        """Whether a strength was found to be too much."""
        return bool(self._told)

    def check(self, optimizer: Optimizer, owned: Mapping[str, nn.Parameter]) -> None:
        """Warn before a step that would be the first of ever larger swings."""
        memory = self.memory
        if not memory.is_anchored or not memory.strength or memory.implicit:
            return
        groups, rates = sgd_groups(optimizer), sgd_rates(optimizer)
        if not groups:
            return
        # Which adapters act is known by what has a gradient: a switch says nothing to the guard.
        acting = {n for n, p in owned.items() if p.grad is not None} if memory.space == "merged" else set()
        known = (memory.version, memory.strength, rates, acting)
        if self._checked.get(optimizer) == known:
            return
        # What has no gradient is not moved away, and has nothing to swing back from.
        names = {id(parameter): name for name, parameter in owned.items() if parameter.grad is not None}
        largest = memory.largest_importance
        for group, (rate, *_) in zip(groups, rates, strict=True):
            held = {names[id(p)] for p in group["params"] if id(p) in names} & largest.keys()
            if held and rate > 0:
                name = max(held, key=largest.__getitem__)
                self._check_group(optimizer, group, rate, name, largest[name])
        self._checked[optimizer] = known

    def _check_group(
        self, optimizer: Optimizer, group: Mapping[str, Any], rate: float, name: str, largest: float
    ) -> None:
        strengths = self.memory.driving.strengths
        factor = 1.0 if strengths is None else strengths.factor([name])
        if not factor:  # nothing is held by the strongest of them
            return
        c, omega = self.memory.strength * factor, largest / factor
        bound = largest_curvature(rate, group["momentum"], group["dampening"], nesterov=group["nesterov"])
        curvature = 2 * c * omega
        excess = (curvature + group["weight_decay"]) / bound
        # A schedule that changes the rate with every step is told of once, and again when it has got much worse.
        told = self._told.get((self.memory.version, c), 0.5)
        if excess <= 1 or excess < 2 * told:
            return
        self._told = {(self.memory.version, c): excess}
        momentum = f", momentum={group['momentum']:g}" if group["momentum"] else ""
        # The task's own curvature comes on top.
        most = rounded_down(0.5 * (bound - group["weight_decay"]) / (2 * omega))
        advice = f"Take a strength of {most:g} or less, a smaller lr" if most > 0 else "Take a smaller lr"
        tell(
            f"strength={c:g} is too much for SGD with lr={rate:g}{momentum}: for a weight of {name!r} with importance "
            f"{omega:.3g}, 2c·Ω is {curvature:.3g}, and beyond {bound:.3g} the pull overshoots the anchor by more at "
            f"every step, until weights are infinite. {advice}, {self._others(optimizer)}."
        )

    def _others(self, optimizer: Optimizer) -> str:
        """Return what else bears any strength."""
        adam = "Adam, which has no such bound"
        if not may_be_told_implicit(self.memory, optimizer):
            return f"or {adam}"
        memory = self.memory
        usual = may_be_implicit(memory.driving.form, memory.batch_norm, leans=memory.leans)
        said = "implicit=True, as it is by default with SGD" if usual else "implicit=True"
        return f"{adam}, or Guard(..., {said}), whose pull cannot overshoot"


def may_be_told_implicit(memory: Memory, optimizer: Optimizer) -> bool:
    """Whether a guard with ``implicit=True`` in the place of this one would be taken, by this optimiser too."""
    form = memory.driving.form
    try:
        checked_implicit(True, form, memory.batch_norm, leans=memory.leans)
        check_reach(optimizer, form)
    except (ConfigurationError, OptimizerError):
        return False
    return memory.space != "merged"


def sgd_groups(optimizer: Optimizer) -> list[dict[str, Any]]:
    """Return the groups that SGD moves: an optimiser's own, or, of SAM and its like, those of the one inside."""
    stepping = next((o for o in (optimizer, *vars(optimizer).values()) if _is_sgd(o)), None)
    return [] if stepping is None else stepping.param_groups


def sgd_rates(optimizer: Optimizer) -> list[tuple[Any, ...]]:
    """Return what SGD's bound depends on, group by group."""
    return [
        (float(group["lr"]), group["momentum"], group["dampening"], group["nesterov"], group["weight_decay"])
        for group in sgd_groups(optimizer)
    ]


def largest_strength(memory: Memory, optimizer: Optimizer, owned: Mapping[str, nn.Parameter]) -> float:
    """Return the strength up to which an optimiser is stable by itself, half of it for the task's own curvature.

    Those that have no such bound bear any, and so does an implicit hold.
    """
    if memory.implicit:
        return math.inf
    names = {id(parameter): name for name, parameter in owned.items()}
    most = math.inf
    largest = memory.largest_importance
    for group in sgd_groups(optimizer):
        held = {names[id(p)] for p in group["params"] if id(p) in names} & largest.keys()
        omega = max((largest[name] for name in held), default=0.0)
        if omega > 0 and float(group["lr"]) > 0:
            bound = largest_curvature(
                float(group["lr"]), group["momentum"], group["dampening"], nesterov=group["nesterov"]
            )
            most = min(most, max(0.5 * (bound - group["weight_decay"]) / (2 * omega), 1e-38))
    return most


def _is_sgd(optimizer: object) -> TypeGuard[SGD]:
    return isinstance(optimizer, SGD)


def rounded_down(value: float) -> float:
    """Return a positive number with one digit that is not larger than it; 0 for others."""
    if not 0 < value < math.inf:
        return 0.0
    unit = 10.0 ** math.floor(math.log10(value))
    return math.floor(value / unit) * unit


def largest_curvature(rate: float, momentum: float, dampening: float, *, nesterov: bool) -> float:
    """Return up to which curvature of a quadratic SGD is stable."""
    if nesterov:
        return 2 * (1 + momentum) / ((1 + 2 * momentum) * rate)
    # Without momentum, torch's SGD has no dampening either.
    scale = rate * (1 - dampening) if momentum else rate
    return 2 * (1 + momentum) / scale if scale > 0 else float("inf")
