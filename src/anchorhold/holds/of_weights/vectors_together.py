r"""The pull of many small parameters at once: the fast path of :class:`~anchorhold.holds.of_weights.quadratic.Quadratic`.

In a form of layers' matrices, the scales and shifts of norms have one number a weight. Two thirds of a transformer's
parameters are such, and one by one each takes as many calls as a layer's matrix, for a few hundred numbers.
"""

from collections.abc import Container

import torch
from torch import Tensor

from anchorhold.forms.diagonal import DiagonalMatrix
from anchorhold.holds.base import Held
from anchorhold.tensors.sharding import is_sharded
from anchorhold.tensors.storage import running_dtype

SMALL = 2**16
"""Numbers of the largest parameter that is taken along: larger ones are made and added one after the other."""


def pulls_of_vectors(held: Held, names: Container[str]) -> dict[str, Tensor]:
    """Return 2cΩ∘(θ − θ*) of the small parameters among some that lie as they are computed, all on one device."""
    theta: dict[str, Tensor] = {}
    anchors, omegas = [], []
    for matrix in held.importance.values():
        if not isinstance(matrix, DiagonalMatrix) or matrix.name not in held.parameters or matrix.name not in names:
            continue
        own, anchor, omega = held.parameters[matrix.name], held.anchor[matrix.name], matrix.omega
        if own.numel() > SMALL or is_sharded(own) or running_dtype(own) != own.dtype:
            continue
        first = next(iter(theta.values()), own)
        if all((each.device, each.dtype) == (first.device, first.dtype) for each in (own, anchor, omega)):
            theta[matrix.name] = own.detach()
            anchors.append(anchor)
            omegas.append(omega)
    if not theta:
        return {}
    found = torch._foreach_sub(list(theta.values()), anchors)
    torch._foreach_mul_(found, omegas)
    torch._foreach_mul_(found, 2 * held.strength)
    return dict(zip(theta, found, strict=True))
