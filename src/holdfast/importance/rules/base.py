"""What every layer rule provides.

A rule belongs to one call of one function, such as ``F.linear(x, weight, bias)``. It knows the call's input and turns
the gradient δ at the call's output into the per-sample gradients of its parameters. Samples come first in everything
it is given: the input as ``[N, ...]``, δ as ``[V, N, ...]`` for V rows of scores.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping

import torch
from torch import Tensor

from holdfast.importance.phi import Phi

TILE_BYTES = 2**20
"""Per-sample gradients are made in tiles of about this size, so that they are summed while still in cache."""


class Rule(ABC):
    """The parameters of one call and how their gradients follow from δ."""

    def __init__(self, input: Tensor, parameters: Mapping[str, Tensor | None]) -> None:
        self.input = input
        self.parameters = {role: p for role, p in parameters.items() if p is not None}

    @abstractmethod
    def gradients(self, role: str, a: Tensor, delta: Tensor) -> Tensor:
        """Return the gradients ``[V, N, *parameter.shape]`` of each row and sample."""

    def importance(self, role: str, a: Tensor, delta: Tensor, phi: Phi) -> Tensor:
        """Return φ of the gradients, summed over rows and samples."""
        return phi.sum(self.gradients(role, a, delta), (0, 1))

    def row_numel(self, role: str) -> int:
        """How many numbers :meth:`importance` holds for each row of each sample, besides δ."""
        return self.parameters[role].numel()

    def sample_numel(self) -> int:
        """How many numbers :meth:`importance` holds for each sample, whatever the rows."""
        return 0


def phi_of_products(delta: Tensor, a: Tensor, phi: Phi) -> Tensor:
    r"""Return :math:`\sum_{n,v} \varphi(\sum_t \delta_{vnt} a_{nt}^T)`, the heart of every layer with weights.

    Args:
        delta: ``[N, V, O, T]``.
        a: ``[N, T, K]``.
        phi: the φ of the measure.

    Returns:
        ``[O, K]``. With one position φ goes through the product and no per-sample gradient is ever made; otherwise
        they are made in tiles that stay in cache.
    """
    n, rows, outputs, places = delta.shape
    features = a.shape[-1]
    if places == 1:
        return phi.sum(delta.squeeze(-1), (1,)).mT @ phi(a.squeeze(1))
    total = a.new_zeros(outputs, features)
    # A tile holds some rows of some samples, or, for a large layer, some outputs of a single row and sample.
    across = max(1, min(outputs, TILE_BYTES // (features * a.element_size())))
    if across == outputs:
        deep = max(1, min(rows, TILE_BYTES // (outputs * features * a.element_size())))
        for sample in range(n):
            for row in range(0, rows, deep):
                block = delta[sample, row : row + deep].reshape(-1, places)
                tile = (block @ a[sample]).view(-1, outputs, features)
                total += phi.sum(tile, (0,))
        return total
    for first in range(0, outputs, across):
        part = total[first : first + across]
        for sample in range(n):
            for row in range(rows):
                phi.add_(part, delta[sample, row, first : first + across] @ a[sample])
    return total


def sum_to(tensor: Tensor, shape: torch.Size, lead: int) -> Tensor:
    """Sum ``tensor`` over what broadcasting added to ``shape``, leaving its first ``lead`` dimensions alone."""
    inner = tensor.shape[lead:]
    # The sample dimension is among the first `lead`, so a parameter's own leading 1 in its place is put back last.
    aligned = shape[1:] if len(shape) > len(inner) else shape
    extra = len(inner) - len(aligned)
    summed = [lead + i for i in range(extra)]
    summed += [lead + extra + i for i, size in enumerate(aligned) if size == 1 and inner[extra + i] != 1]
    if summed:
        tensor = tensor.sum(dim=summed, keepdim=False)
    return tensor.reshape(*tensor.shape[:lead], *shape)
