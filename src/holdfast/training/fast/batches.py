"""Training data where the steps read it: on the device, one block a run, fetched by index."""

from collections.abc import Sequence

import torch
from torch import Tensor

from holdfast.scenarios import Samples


class Batches:
    """The samples of the current task, for L runs of one lane."""

    def __init__(
        self,
        runs: int,
        capacity: int,
        shape: torch.Size,
        dtype: torch.dtype,
        device: torch.device,
        *,
        channels_last: bool,
    ) -> None:
        """Make room for ``capacity`` samples of each run."""
        # Convolutions on a GPU want the channels last in memory.
        self._swap = channels_last and len(shape) == 3
        self._shape = torch.Size((*shape[1:], shape[0])) if self._swap else shape
        self._x = torch.zeros(runs, capacity, *self._shape, dtype=dtype, device=device)
        self._y = torch.zeros(runs, capacity, dtype=torch.long, device=device)
        # Where each run's block begins, in a table of all runs' samples.
        self._offsets = (torch.arange(runs, device=device) * capacity).view(-1, 1)

    def fill(self, samples: Sequence[Samples]) -> None:
        """Take over a task's samples, one set a run."""
        for x, y, own in zip(self._x, self._y, samples, strict=True):
            x[: len(own)].copy_(own.x.movedim(1, -1) if self._swap else own.x)
            y[: len(own)].copy_(own.y)

    def fetch(self, chosen: Tensor) -> tuple[Tensor, Tensor]:
        """Return inputs ``[L, B, ...]`` and labels ``[L, B]``, given indices ``[L, B]``."""
        where = (chosen + self._offsets).flatten()
        x = self._x.flatten(0, 1).index_select(0, where).view(*chosen.shape, *self._shape)
        return x.movedim(-1, 2) if self._swap else x, self._y.flatten().index_select(0, where).view(chosen.shape)
