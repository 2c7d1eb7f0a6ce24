r"""The curvature and the strength up to which SGD is stable, which is a formula of its settings.

Beside the task's gradient, the penalty of one weight is a quadratic of curvature :math:`\lambda = 2c\,\Omega`, and SGD
on a quadratic is a linear recurrence, stable where the roots of its characteristic polynomial lie within the unit
circle. With learning rate η, momentum μ and dampening d that is

.. math:: \eta(1-d)\lambda < 2(1+\mu), \qquad\text{and with Nesterov's}\quad \eta\lambda < \frac{2(1+\mu)}{1+2\mu}.
"""

import math
from collections.abc import Mapping
from typing import Any, TypeGuard

from torch import nn
from torch.optim import SGD, Optimizer

from anchorhold.guard.core import Core


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


def largest_strength(core: Core, optimizer: Optimizer, owned: Mapping[str, nn.Parameter]) -> float:
    """Return the strength up to which an optimiser is stable by itself, half of it for the task's own curvature.

    Those that have no such bound bear any, and so does an implicit hold.
    """
    if core.state.implicit.value:
        return math.inf
    names = {id(parameter): name for name, parameter in owned.items()}
    most = math.inf
    largest = core.largest_importance
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
