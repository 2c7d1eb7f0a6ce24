"""By what a model's buffers, such as the statistics of batch norms, are known again where its importance is used.

What a weight is worth depends on them, and no anchor has them: five numbers of each go along, and none of its values.
"""

import math
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from anchorhold.tensors.sharding import local

APART = 0.01
"""How far, by the length of a buffer, its numbers may be from those of then before it is taken for another."""

DIRECTIONS = 4


@torch.no_grad()
def buffer_marks(model: nn.Module) -> dict[str, list[float]]:
    """Return the root mean square of each buffer that a model is saved with, and how it lies to a fixed direction."""
    saved = model.state_dict().keys()
    return {
        name: _mark(b) for name, b in model.named_buffers() if name in saved and b.is_floating_point() and b.numel()
    }


def other_buffers(model: nn.Module, marks: Any) -> list[str]:
    """Return the names of buffers that are others than those that marks were taken of; a file may lack marks."""
    if not isinstance(marks, Mapping):
        return []
    here = buffer_marks(model)
    return [name for name, mark in marks.items() if name in here and not _near(here[name], mark)]


def _mark(buffer: Tensor) -> list[float]:
    values = local(buffer).cpu().double().flatten()
    places = torch.arange(1, len(values) + 1, dtype=torch.float64)
    along = [(values * (number * places).cos()).sum() for number in range(1, DIRECTIONS + 1)]
    return [float(values.norm()), *map(float, along)]


def _near(here: list[float], mark: Any) -> bool:
    if not (isinstance(mark, list) and len(mark) == len(here) and all(isinstance(each, int | float) for each in mark)):
        return True  # of another version, or damaged: nothing can be told by it
    return here == mark or math.dist(here, mark) <= APART * max(here[0], mark[0])
