"""Where each parameter lies in the buffer that holds them all."""

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

ALIGNMENT = 16
"""Elements to which every parameter's place is rounded up: matrix products need rows that start on 32 bytes."""


@dataclass(frozen=True)
class Place:
    """One parameter's place in a row."""

    start: int
    shape: torch.Size

    @property
    def stop(self) -> int:
        """Where it ends, without what is left free behind it."""
        return self.start + self.shape.numel()


class FlatLayout:
    """The places of some parameters in a row, one after another."""

    def __init__(self, shapes: Mapping[str, torch.Size]) -> None:
        self.places: dict[str, Place] = {}
        end = 0
        for name, shape in shapes.items():
            self.places[name] = Place(end, shape)
            end += -(-shape.numel() // ALIGNMENT) * ALIGNMENT
        self.width = end

    def views(self, rows: Tensor) -> dict[str, Tensor]:
        """Return each parameter's part of a buffer ``[..., width]``, in the parameter's shape."""
        lead = rows.shape[:-1]
        return {
            name: rows[..., place.start : place.stop].view((*lead, *place.shape)) for name, place in self.places.items()
        }

    def fill(self, row: Tensor, values: Mapping[str, Tensor]) -> None:
        """Set a row to values by parameter, 0 where there are none; values without a place are left out."""
        row.zero_()
        for name, view in self.views(row).items():
            if name in values:
                view.copy_(values[name])

    def joined(self, values: Mapping[str, Tensor]) -> Tensor:
        """Return values ``[L, *shape]`` side by side as a buffer ``[L, width]``, zeros where nothing lies."""
        parts = []
        some = next(iter(values.values()))
        for (name, place), end in zip(self.places.items(), self._ends(), strict=True):
            given = name in values
            value = values[name].reshape(len(some), -1) if given else some.new_zeros(len(some), place.shape.numel())
            parts.append(value)
            if end > place.stop:
                parts.append(value.new_zeros(len(value), end - place.stop))
        return torch.cat(parts, 1)

    def _ends(self) -> list[int]:
        return [*(place.start for place in list(self.places.values())[1:]), self.width]
