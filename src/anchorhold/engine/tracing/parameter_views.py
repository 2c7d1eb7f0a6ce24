"""Parameters and views of them, such as a transpose or a slice, as places in the whole parameter."""

import itertools
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn


@dataclass(frozen=True)
class Part:
    """Where a tensor lies in the parameter ``name``; a geometry of ``None`` is the whole of it."""

    name: str
    geometry: tuple[torch.Size, tuple[int, ...], int] | None = None

    def within(self, whole: Tensor, lead: int = 0) -> Tensor:
        """Return this part of a tensor ``[*lead, *parameter.shape]`` that is laid out as the parameter is."""
        if self.geometry is None:
            return whole
        size, stride, offset = self.geometry
        return whole.as_strided(
            (*whole.shape[:lead], *size), (*whole.stride()[:lead], *stride), whole.storage_offset() + offset
        )

    @property
    def span(self) -> tuple[float, float]:
        """The places between which it lies: from the first, up to but without the last."""
        if self.geometry is None:
            return 0, float("inf")
        size, stride, offset = self.geometry
        return offset, offset + _extent(size, stride)


def part_of(tensor: Tensor, names: Mapping[int, str]) -> Part | None:
    """Return what part of a parameter a tensor is, given the parameters' names by id, if it is one at all."""
    name = names.get(id(tensor))
    if name is not None:
        return Part(name)
    base = tensor._base if tensor.requires_grad else None
    if base is None or id(base) not in names or not base.is_contiguous() or tensor.dtype != base.dtype:
        return None
    order = sorted(zip(tensor.stride(), tensor.shape, strict=True))
    reached = 0
    for stride, size in order:
        if size > 1 and stride <= reached:
            return None  # an expanded or overlapping view holds one number at several places
        reached += stride * (size - 1)
    offset = tensor.storage_offset() - base.storage_offset()
    return Part(names[id(base)], (tensor.shape, tensor.stride(), int(offset)))


def is_parameter(tensor: object) -> bool:
    """Whether this is a parameter, or a view of one through which gradients flow."""
    if isinstance(tensor, nn.Parameter):
        return True
    return isinstance(tensor, Tensor) and tensor.requires_grad and isinstance(tensor._base, nn.Parameter)


def disjoint(parts: Iterable[Part]) -> bool:
    """Whether no two of these parts of one parameter overlap, so that each may be added up on its own."""
    spans = sorted(part.span for part in parts)
    return all(end <= start for (_, end), (start, _) in itertools.pairwise(spans))


def _extent(size: Iterable[int], stride: Iterable[int]) -> int:
    return 1 + sum(step * (length - 1) for length, step in zip(size, stride, strict=True))
