r"""The quadratic penalty :math:`c \sum_i \Omega_i (\theta_i - \theta_i^*)^2`, its value and its gradient.

There is no ½, as in the paper, so the gradient is :math:`2c\,\Omega(\theta-\theta^*)`.
"""

from collections.abc import Mapping

import torch
from torch import Tensor

from holdfast.tensors.pieces import in_pieces
from holdfast.tensors.sharding import is_sharded, whole_sums
from holdfast.tensors.storage import at_hand


def penalty_value(
    parameters: Mapping[str, Tensor], importance: Mapping[str, Tensor], anchor: Mapping[str, Tensor], strength: float
) -> Tensor:
    """Return the penalty, differentiable in the parameters; for sharded ones, that of all processes' parts."""
    terms = [
        _term(parameter, at_hand(importance[name], parameter), at_hand(anchor[name], parameter))
        for name, parameter in parameters.items()
        if name in anchor
    ]
    device = next(iter(parameters.values())).device
    if not terms:
        return torch.zeros((), device=device)
    # Parameters may lie on several devices; the few sums meet on the first one's.
    return strength * torch.stack([term.to(device) for term in whole_sums(terms)]).sum()


def _term(parameter: Tensor, importance: Tensor, anchor: Tensor) -> Tensor:
    if torch.is_grad_enabled() or is_sharded(parameter):
        return _weighted_squares(parameter, importance, anchor)
    # Closures want the value at every step, and whole temporaries would be new memory every time.
    sums = []
    for theta, omega, theta_star in in_pieces([parameter.detach(), importance, anchor]):
        assert theta is not None and omega is not None and theta_star is not None
        sums.append(_weighted_squares(theta, omega, theta_star))
    return torch.stack(sums).sum()


def _weighted_squares(parameter: Tensor, importance: Tensor, anchor: Tensor) -> Tensor:
    return (importance * (parameter - anchor).square()).sum()


def penalty_gradient(parameter: Tensor, importance: Tensor, anchor: Tensor, factor: float | Tensor) -> Tensor:
    """Return ``factor · Ω (θ − θ*)``; ``factor`` is 2c."""
    return factor * importance * (parameter - anchor)


def add_penalty_gradient(
    gradient: Tensor, parameter: Tensor, importance: Tensor, anchor: Tensor, *, factor: float, out: Tensor
) -> None:
    """Write a gradient and the penalty's to ``out``, which may be ``gradient`` itself."""
    # A temporary would be new memory every time, and touching new pages costs more than the arithmetic.
    spare = out if out.data_ptr() != gradient.data_ptr() and out.dtype == anchor.dtype else None
    distance = torch.sub(parameter, anchor, out=spare)
    if distance.dtype == gradient.dtype:
        torch.addcmul(gradient, importance, distance, value=factor, out=out)
    else:  # low-precision parameters are held with importances of full precision
        largest = torch.finfo(out.dtype).max  # beyond which float16, soon reached at a scaler's scale, is infinite
        out.copy_((gradient + penalty_gradient(parameter, importance, anchor, factor)).clamp_(-largest, largest))
