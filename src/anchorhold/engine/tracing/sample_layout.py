"""Telling samples apart inside a tensor.

A layer may see its samples first (``[N, T, d]``), second (``[T, N, d]``), merged with positions (``[N·T, d]`` or
``[T·N, d]``) or not at all (``[T, d]``, broadcast later). Guessing from one shape would sometimes be wrong without a
sign of it, so the engine runs the model on one sample and on two, and compares.
"""

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class SampleLayout:
    """Samples lie along ``dim``, where each of them has ``places`` entries.

    Args:
        dim: the dimension that grows with the samples.
        places: how many entries of it belong to each sample; 1 unless samples are merged with positions.
        interleaved: whether neighbouring entries belong to different samples (``[T·N]``) and not to one (``[N·T]``).
    """

    dim: int
    places: int = 1
    interleaved: bool = False

    def samples_first(self, tensor: Tensor, lead: int = 0) -> Tensor:
        """View a tensor as ``[*lead, N, ...]``, where its first ``lead`` dimensions are none of the layout's."""
        dim = self.dim + lead
        if self.interleaved:
            return torch.unflatten(tensor, dim, (self.places, -1)).movedim(dim + 1, lead)
        if self.places > 1:
            tensor = torch.unflatten(tensor, dim, (-1, self.places))
        return tensor.movedim(dim, lead)

    def unbroadcast(self, tensor: Tensor, shape: torch.Size, lead: int) -> Tensor:
        """Sum a tensor over what broadcasting added to ``shape``, but not over samples: ``[*lead, N, *shape]``."""
        aligned = (1,) * (tensor.ndim - lead - len(shape)) + tuple(shape)
        added = [
            lead + dim
            for dim, size in enumerate(aligned)
            if size == 1 and tensor.shape[lead + dim] != 1 and dim != self.dim
        ]
        if added:
            tensor = tensor.sum(added, keepdim=True)
        tensor = tensor.movedim(lead + self.dim, lead)
        return tensor.reshape(*tensor.shape[: lead + 1], *shape)

    def shape(self, of_one: torch.Size, samples: int) -> torch.Size:
        """Return the shape of a tensor for so many samples, given that for one."""
        sizes = list(of_one)
        sizes[self.dim] *= samples
        return torch.Size(sizes)


def layout_of_shapes(one: torch.Size, two: torch.Size) -> SampleLayout | None:
    """Return where samples lie, given the shapes for one sample and for two, or ``None`` where that is unclear."""
    if len(one) != len(two):
        return None
    grown = [dim for dim, (a, b) in enumerate(zip(one, two, strict=True)) if a != b]
    if len(grown) != 1 or two[grown[0]] != 2 * one[grown[0]]:
        return None
    return SampleLayout(grown[0], one[grown[0]])


def layout_of(one: Tensor, two: Tensor) -> SampleLayout | None:
    """Return where samples lie, given the values for the first sample and for it and another.

    Where samples are merged with positions, the first sample's values must be found in one of the two orders; if
    both fit (or neither does), the layout is unclear.
    """
    layout = layout_of_shapes(one.shape, two.shape)
    if layout is None or layout.places == 1:
        return layout
    orders = [layout, SampleLayout(layout.dim, layout.places, interleaved=True)]
    fitting = [order for order in orders if same_values(one, order.samples_first(two)[0])]
    return fitting[0] if len(fitting) == 1 else None


def same_values(x: Tensor, y: Tensor) -> bool:
    """Whether two tensors are equal up to rounding: batches of different size may be summed in different order."""
    x, y = x.detach(), y.detach()
    if x.shape != y.shape:
        return False
    if x.is_complex() and y.is_complex():
        x, y = torch.view_as_real(x.resolve_conj()), torch.view_as_real(y.resolve_conj())
    if not x.is_floating_point():
        return bool(torch.equal(x, y))
    size = x.abs().masked_fill(~x.isfinite(), 0.0)
    tolerance = torch.finfo(x.dtype).eps ** 0.5 * float(size.max()) if x.numel() else 0.0
    return bool(torch.allclose(x, y, rtol=0.0, atol=tolerance, equal_nan=True))
