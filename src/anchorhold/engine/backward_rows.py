"""Rows of output gradients, sent backward together: as a batch dimension of their own, as many at once as fit."""

from typing import Any

import torch
from torch import Tensor


class BackwardRows:
    """Sends rows backward and gathers what arrives: in the same memory for every block of rows.

    On a CPU, memory of this size would be mapped anew each time, and touching new pages costs as much as the
    arithmetic.
    """

    def __init__(self) -> None:
        self._batched = True
        self._kept: dict[int, Tensor] = {}

    def arrived(self, outputs: Tensor, edges: list[Any], u: Tensor, together: int) -> list[Tensor | None]:
        """Return the gradients ``[V, ...]`` at each edge for output gradients ``u`` of ``[V, ...]``.

        Args:
            outputs: what the model has returned.
            edges: where gradients are wanted.
            u: the rows.
            together: how many of them go at once.
        """
        arrived: list[Tensor | None] = [None] * len(edges)
        first = 0
        while first < len(u):
            rows = u[first : first + (together if self._batched else 1)]
            try:
                found = torch.autograd.grad(
                    outputs,
                    edges,
                    rows if len(rows) > 1 else rows[0],
                    retain_graph=True,
                    allow_unused=True,
                    is_grads_batched=len(rows) > 1,
                )
            except RuntimeError:
                if len(rows) == 1:
                    raise
                # Some backward pass cannot be batched; one row at a time either works or raises its own error.
                self._batched = False
                continue
            blocks: list[Tensor | None] = [g if g is None or len(rows) > 1 else g.unsqueeze(0) for g in found]
            if len(rows) == len(u):
                return blocks
            for place, block in enumerate(blocks):
                if block is not None:
                    gathered = arrived[place] = self._memory_for(place, len(u), block[0])
                    gathered[first : first + len(rows)] = block
            first += len(rows)
        return arrived

    def _memory_for(self, place: int, count: int, like: Tensor) -> Tensor:
        """Return memory for ``count`` tensors like the one given, as ``[count, *like.shape]``."""
        # The first dimension is the samples', mostly: with a sample's rows side by side they are one matrix.
        shape = (*like.shape[:1], count, *like.shape[1:])
        kept = self._kept.get(place)
        if kept is None or len(kept) < shape[0] or kept.shape[1:] != shape[1:] or kept.dtype != like.dtype:
            kept = self._kept[place] = like.new_empty(shape)
        return kept[: shape[0]].movedim(min(1, like.ndim), 0)
