r"""The pull of many small diagonals at once: the fast path of one by one.

In a form of layers' matrices, the scales and shifts of norms have one number a weight. Two thirds of a transformer's
parameters are such, and one by one each takes as many calls as a layer's matrix, for a few hundred numbers.
"""

from collections.abc import Iterable, Mapping

import torch
from torch import Tensor

from anchorhold.forms.base import Matrix
from anchorhold.forms.diagonal import DiagonalMatrix
from anchorhold.tensors.sharding import is_sharded
from anchorhold.tensors.storage import running_dtype

SMALL = 2**16
"""Numbers of the largest parameter that is taken along: larger ones are made and added one after the other."""


def pulls_of_diagonals(
    matrices: Iterable[Matrix], parameters: Mapping[str, Tensor], anchor: Mapping[str, Tensor], factor: float
) -> dict[str, Tensor]:
    """Return a multiple of Ω∘(θ − θ*) of the small diagonals that are kept as they are computed, all on one device."""
    theta: dict[str, Tensor] = {}
    anchors, omegas = [], []
    for matrix in matrices:
        if not isinstance(matrix, DiagonalMatrix) or matrix.name not in parameters:
            continue
        own = parameters[matrix.name]
        if own.numel() > SMALL or is_sharded(own) or running_dtype(own) != own.dtype:
            continue
        first, kept = next(iter(theta.values()), own), (anchor[matrix.name], matrix.omega)
        if all((each.device, each.dtype) == (first.device, first.dtype) for each in (own, *kept)):
            theta[matrix.name] = own.detach()
            anchors.append(kept[0])
            omegas.append(kept[1])
    if not theta:
        return {}
    found = torch._foreach_sub(list(theta.values()), anchors)  # noqa: SLF001 (as torch's optimizers call it)
    torch._foreach_mul_(found, omegas)
    torch._foreach_mul_(found, factor)
    return dict(zip(theta, found, strict=True))
