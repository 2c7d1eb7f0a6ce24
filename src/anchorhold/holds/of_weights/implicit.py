r"""The quadratic hold applied after a step instead of before it, by a pull that no strength can make overshoot.

An optimiser's step takes a weight from θ to θ′. Let h be its rate: how far a weight goes for a unit of a gradient that
stays, and :math:`P = \mathrm{diag}(1/h)`. The pull then goes to where the hold's own gradient, there and not here,
accounts for the way,

.. math:: P\,(\theta^+ - \theta') + 2c\,Q(\theta^+ - \theta^*) - 2c\,r = 0,

the proximal point of the penalty (Rockafellar 1976), or its implicit Euler step. Each direction of D = θ′ − θ* is
divided by a number above 1, and at any strength the weights end between where they were and the anchor. Together with
the step it is forward-backward splitting (Lions and Mercier 1979), with momentum or an adaptive P the proximal form of
that optimiser. Where neither moves a weight any more the step is :math:`\theta' - \theta = -h\,g`, so
:math:`g + 2cQ(\theta - \theta^*) - 2cr = 0`: the stationary points are those of loss and penalty together, at any rate.
"""

import torch
from torch import Tensor

from anchorhold.forms.base import Displacement, Matrix, pull_share


def pull_implicitly_(
    theta: Tensor,
    omega: Tensor,
    theta_star: Tensor,
    factor: float | Tensor,
    rate: float | Tensor,
    linear_term: Tensor | None = None,
) -> None:
    r"""Take weights that are held one by one to :math:`\theta^* + (D + 2chr)/(1 + 2ch\Omega)`, in place.

    Args:
        theta: θ′, after the step.
        omega: Ω.
        theta_star: θ*.
        factor: 2c.
        rate: h.
        linear_term: r, where the hold has one.
    """
    largest = torch.finfo(theta.dtype).max
    # What is beyond all numbers must not meet an Ω of 0 before it has met h.
    together = min(factor * rate, largest) if isinstance(factor, float) and isinstance(rate, float) else None
    pull = (omega * factor).mul_(rate) if together is None else omega * together
    # At both ends this is exact: weights that nothing holds stay as they are, and others are the anchor's.
    theta.lerp_(theta_star, pull_share(pull))
    if linear_term is not None:
        way = torch.as_tensor(factor * rate if together is None else together, dtype=theta.dtype)
        theta.add_(linear_term * way.clamp(max=largest) / (1 + pull.clamp(max=largest)))


def pulled(
    matrix: Matrix, d: Displacement, factor: float, linear_term: Displacement | None = None
) -> dict[str, Tensor]:
    r"""Return what to take off weights that go equally far: :math:`D - (1 + 2chQ)^{-1}(D + 2chr)`.

    Args:
        matrix: Q.
        d: D, after the step.
        factor: 2ch.
        linear_term: r, where the hold has one.
    """
    found = matrix.pull(d, factor)
    if linear_term is None:
        return found
    leaning = matrix.shrink(linear_term, factor)
    return {name: pull - factor * leaning[name] for name, pull in found.items()}
