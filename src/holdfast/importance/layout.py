"""Telling samples apart inside a tensor.

A layer may see its samples first (``[N, T, d]``), second (``[T, N, d]``), merged with positions (``[N·T, d]``) or not
at all (``[T, d]``, broadcast later). Guessing from one shape would sometimes be wrong without a sign of it, so the
engine runs the model on one sample and on two, and compares.
"""

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Layout:
    """Samples lie along ``dim``, each taking ``size`` consecutive places of it (1 unless merged with positions)."""

    dim: int
    size: int

    def samples_first(self, tensor: Tensor, lead: int = 0) -> Tensor:
        """View a tensor as ``[*lead, N, ...]``, where its first ``lead`` dimensions are none of the layout's."""
        dim = self.dim + lead
        if self.size > 1:
            tensor = tensor.unflatten(dim, (-1, self.size))
        return tensor.movedim(dim, lead)


def layout_of_shapes(one: torch.Size, two: torch.Size) -> Layout | None:
    """Return where samples lie, given the shapes for one sample and for two, or ``None`` where that is unclear."""
    if len(one) != len(two):
        return None
    grown = [dim for dim, (a, b) in enumerate(zip(one, two, strict=True)) if a != b]
    if len(grown) != 1 or two[grown[0]] != 2 * one[grown[0]]:
        return None
    return Layout(grown[0], one[grown[0]])


def layout_of(one: Tensor, two: Tensor) -> Layout | None:
    """Return where samples lie, given the values for the first sample and for it and another.

    Where samples are merged with positions, the first sample's values must come first; if the other order fits as
    well (or neither does), the layout is unclear.
    """
    layout = layout_of_shapes(one.shape, two.shape)
    if layout is None or layout.size == 1:
        return layout
    sample_major = two.unflatten(layout.dim, (2, layout.size)).select(layout.dim, 0)
    place_major = two.unflatten(layout.dim, (layout.size, 2)).select(layout.dim + 1, 0)
    return layout if _same(one, sample_major) and not _same(one, place_major) else None


def _same(x: Tensor, y: Tensor) -> bool:
    if not x.is_floating_point():
        return bool(torch.equal(x, y))
    # Batches of different size may be summed in different order: compare to half the digits.
    tolerance = torch.finfo(x.dtype).eps ** 0.5 * float(x.abs().max())
    return bool(torch.allclose(x, y, rtol=0.0, atol=tolerance))
