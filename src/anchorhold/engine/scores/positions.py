"""Outputs as positions, each with its classes: ``[N, P, C]``, and the targets that belong to them."""

from collections.abc import Callable, Iterator, Mapping
from typing import Literal

import torch
from torch import Tensor

from anchorhold.engine.batches import Batch
from anchorhold.engine.scores.softmax import PIECE

IGNORED = -100
"""The label of a position that does not count, as in :func:`torch.nn.functional.cross_entropy`."""

RowMaker = Callable[[int, int, slice], Tensor]
"""``make(start, stop, places)`` returns rows ``start`` to ``stop`` of some positions, as ``[k, N, places, C]``."""

Positions = Literal["joint", "separate"]


def flattened(tensor: Tensor, class_dim: int) -> Tensor:
    """Return outputs, or targets of their shape, as ``[N, P, C]``."""
    moved = tensor.movedim(class_dim, -1)
    return moved.reshape(len(moved), -1, moved.shape[-1])


def without_classes(outputs: Tensor, class_dim: int) -> torch.Size:
    """Return the outputs' shape without the dimension of their classes: that of integer labels."""
    kept = list(outputs.shape)
    del kept[class_dim]
    return torch.Size(kept)


def position_pieces(z: Tensor, rows: int = 1) -> Iterator[slice]:
    """Yield runs of positions of logits ``[N, P, C]``, so short that their softmax is small, ``rows`` times."""
    across = max(1, PIECE // max(1, rows * len(z) * z.shape[-1]))
    for first in range(0, z.shape[1], across):
        yield slice(first, first + across)


def counted_positions(batch: Batch, outputs: Tensor) -> Tensor | None:
    """Return which positions of the outputs count: those with a label, or else those that are not masked out."""
    shape = outputs.shape[:-1]
    labels = batch.labels_for(outputs)
    if labels is not None and labels.shape == shape and not labels.is_floating_point():
        return labels != IGNORED
    mask = batch.inputs.get("attention_mask") if isinstance(batch.inputs, Mapping) else None
    return mask.bool() if isinstance(mask, Tensor) and mask.shape == shape else None
