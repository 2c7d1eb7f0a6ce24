"""Convolutions of one, two or three dimensions, with stride, padding, dilation and groups."""

import math
from collections.abc import Sequence

import torch.nn.functional as F
from torch import Tensor

from anchorhold.engine.phi import Phi
from anchorhold.engine.rules.base import Products, Rule, phi_of_products, register_rule, tile_bytes


@register_rule(F.conv1d, F.conv2d, F.conv3d)
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
        # A few samples at a time, so that their patches, which hold each input many times, are used while in cache.
        patched = a[0].numel() * math.prod(self.weight.shape[2:]) * a.element_size()
        wide = max(1, tile_bytes(a.device) // patched)
        total = a.new_zeros(self.groups, self.weight.shape[0] // self.groups, self.weight[0].numel())
        for first in range(0, len(a), wide):
            part = slice(first, first + wide)
            total += phi_of_products(delta[:, part].transpose(0, 1), self._patches(a[part]), phi)
        return total.view(self.weight.shape)

    def inputs(self, a: Tensor) -> Tensor:
        """Return the patch of every place; with several groups, those of each, which some of the outputs see."""
        return self._patches(a, side_by_side=self.groups == 1).flatten(1, 2)

    def products(self, a: Tensor, delta: Tensor) -> Products | None:
        """Return δ and the patch of every place; with several groups, outputs see inputs of their own."""
        if self.groups > 1:
            return None
        return Products(self._by_group(delta).squeeze(2).mT, self._patches(a, side_by_side=True).squeeze(1))

    def products_numel(self, a: Tensor) -> int:
        """Return how many numbers the patches are, which hold each input as often as the kernel is large."""
        return 0 if self.groups > 1 else a[0].numel() * math.prod(self.weight.shape[2:])

    def reads(self, dim: int) -> bool:
        """Return whether samples come first, since channels come second."""
        return dim == 0

    def row_numel(self, role: str) -> int:
        """Return 0 for the weight, whose gradients are made in tiles."""
        return self.parameters[role].numel() if role == "bias" else 0

    def _by_group(self, delta: Tensor) -> Tensor:
        """View δ of ``[V, N, (T,) O, *space]`` as ``[V, N, G, O/G, places]``."""
        spatial = self.weight.ndim - 2
        channels = delta.ndim - spatial - 1
        if channels == 3:  # a merged batch: its T becomes part of the places
            delta = delta.movedim(2, -1)
        return delta.reshape(*delta.shape[:2], self.groups, self.weight.shape[0] // self.groups, -1)

    def _patches(self, a: Tensor, *, side_by_side: bool = False) -> Tensor:
        """Return the patches under the kernel as ``[N, G, places, I/G · kernel]``.

        In memory places come last, and those of all samples are ``side_by_side`` where they serve as one matrix.
        """
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
        a = a.reshape(len(a), self.groups, -1, *a.shape[2:])
        lead, inner = a.stride()[:3], a.stride()[3:]
        # Places come last in memory, as in the input: so whole rows of it are copied, not single kernels' widths.
        windows = a.as_strided(
            (*a.shape[:3], *kernel, *places),
            (
                *lead,
                *(i * d for i, d in zip(inner, self.dilation, strict=True)),
                *(i * s for i, s in zip(inner, self.stride, strict=True)),
            ),
        )
        if side_by_side:
            windows = windows.movedim(0, -1 - spatial)
            patches = windows.reshape(self.groups, -1, len(a), math.prod(places)).permute(2, 0, 3, 1)
        else:
            patches = windows.reshape(*a.shape[:2], -1, math.prod(places)).mT
        if merged is not None:  # the places of a sample: every place of each of its T inputs, T last as in δ
            patches = patches.reshape(-1, merged, *patches.shape[1:]).permute(0, 2, 3, 1, 4).flatten(2, 3)
        return patches


def _tuple(value: int | Sequence[int], length: int) -> tuple[int, ...]:
    if isinstance(value, int):
        return (value,) * length
    return tuple(value) * (length if len(value) == 1 else 1)
