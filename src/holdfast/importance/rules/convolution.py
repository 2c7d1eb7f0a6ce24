"""Convolutions of one, two or three dimensions, with stride, padding, dilation and groups."""

import math
from collections.abc import Sequence

import torch.nn.functional as F
from torch import Tensor

from holdfast.importance.phi import Phi
from holdfast.importance.rules.base import Rule, phi_of_products


class Convolution(Rule):
    """A convolution is a linear layer applied to every patch of its input, so its positions are the patches."""

    def __init__(
        self,
        input: Tensor,
        weight: Tensor,
        bias: Tensor | None = None,
        stride: int | Sequence[int] = 1,
        padding: str | int | Sequence[int] = 0,
        dilation: int | Sequence[int] = 1,
        groups: int = 1,
    ) -> None:
        super().__init__(input, {"weight": weight, "bias": bias})
        self.weight = weight
        spatial = weight.ndim - 2
        self.stride = _tuple(stride, spatial)
        self.dilation = _tuple(dilation, spatial)
        self.groups = groups
        kernel = weight.shape[2:]
        if padding == "same":
            totals = [d * (k - 1) for d, k in zip(self.dilation, kernel, strict=True)]
            self.padding = [(total // 2, total - total // 2) for total in totals]
        elif padding == "valid":
            self.padding = [(0, 0)] * spatial
        else:
            assert not isinstance(padding, str)
            self.padding = [(p, p) for p in _tuple(padding, spatial)]

    def gradients(self, role: str, a: Tensor, delta: Tensor) -> Tensor:
        """Return ``Σ_p δ_p patch_pᵀ`` or ``Σ_p δ_p``."""
        delta = self._by_group(delta)
        if role == "bias":
            return delta.sum(-1).flatten(2)
        patches = self._patches(a)
        return (delta @ patches).reshape(*delta.shape[:2], *self.weight.shape)

    def importance(self, role: str, a: Tensor, delta: Tensor, phi: Phi) -> Tensor:
        """Return the importance, group by group."""
        delta = self._by_group(delta)
        if role == "bias":
            return phi.sum(delta.sum(-1).flatten(2), (0, 1))
        patches = self._patches(a)
        if self.groups == 1:
            found = phi_of_products(delta.squeeze(2).transpose(0, 1), patches.squeeze(1), phi)
        else:
            found = phi.sum(delta @ patches, (0, 1))
        return found.reshape(self.weight.shape)

    def row_numel(self, role: str) -> int:
        """The weight's gradients are made in tiles unless it has groups."""
        return self.parameters[role].numel() if role == "bias" or self.groups > 1 else 0

    def sample_numel(self) -> int:
        """The patches, which all rows share."""
        return self.input[0].numel() * math.prod(self.weight.shape[2:])

    def _by_group(self, delta: Tensor) -> Tensor:
        """View δ of ``[V, N, (T,) O, *space]`` as ``[V, N, G, O/G, places]``."""
        spatial = self.weight.ndim - 2
        channels = delta.ndim - spatial - 1
        if channels == 3:  # a merged batch: its T becomes part of the places
            delta = delta.movedim(2, -1)
        return delta.reshape(*delta.shape[:2], self.groups, self.weight.shape[0] // self.groups, -1)

    def _patches(self, a: Tensor) -> Tensor:
        """Return the patches under the kernel as ``[N, G, places, I/G · kernel]``."""
        spatial = self.weight.ndim - 2
        merged = a.shape[1] if a.ndim == spatial + 3 else None
        if merged is not None:
            a = a.flatten(0, 1)
        # F.pad counts from the last dimension backwards.
        a = F.pad(a, [side for pair in reversed(self.padding) for side in pair])
        kernel = self.weight.shape[2:]
        places = [
            (size - d * (k - 1) - 1) // s + 1
            for size, d, k, s in zip(a.shape[2:], self.dilation, kernel, self.stride, strict=True)
        ]
        a = a.unflatten(1, (self.groups, -1))
        lead, inner = a.stride()[:3], a.stride()[3:]
        windows = a.as_strided(
            (a.shape[0], self.groups, *places, a.shape[2], *kernel),
            (
                lead[0],
                lead[1],
                *(i * s for i, s in zip(inner, self.stride, strict=True)),
                lead[2],
                *(i * d for i, d in zip(inner, self.dilation, strict=True)),
            ),
        )
        patches = windows.reshape(a.shape[0], self.groups, math.prod(places), -1)
        if merged is not None:  # the places of a sample: every place of each of its T inputs, T last as in δ
            patches = patches.unflatten(0, (-1, merged)).permute(0, 2, 3, 1, 4).flatten(2, 3)
        return patches


def _tuple(value: int | Sequence[int], length: int) -> tuple[int, ...]:
    if isinstance(value, int):
        return (value,) * length
    return tuple(value) * (length if len(value) == 1 else 1)
