"""Training data where the steps read it: on the device, one block a run, fetched by index."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from anchorhold_lab.scenarios import Samples


@dataclass(frozen=True)
class Clock:
    """Counts steps on the device, since a recorded step cannot be told its number."""

    counts: Tensor

    @staticmethod
    def on(device: torch.device) -> "Clock":
        """Return a clock at 0."""
        return Clock(torch.zeros(2, dtype=torch.long, device=device))

    @property
    def in_epoch(self) -> Tensor:
        """The steps taken in this epoch."""
        return self.counts[:1]

    @property
    def in_task(self) -> Tensor:
        """The steps taken in this task."""
        return self.counts[1:]

    def set(self, in_epoch: int, in_task: int) -> None:
        """Set both counts."""
        self.in_epoch.fill_(in_epoch)
        self.in_task.fill_(in_task)

    def tick(self) -> None:
        """Count a step."""
        self.counts.add_(1)


class Batches:
    """The samples of the current task for L runs, one block after another in a table."""

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
        self.capacity = capacity
        # Convolutions on a GPU want the channels last in memory.
        self.channels_last = channels_last and len(shape) == 3
        shape = torch.Size((*shape[1:], shape[0])) if self.channels_last else shape
        self.x = torch.zeros(runs * capacity, *shape, dtype=dtype, device=device)
        self.y = torch.zeros(runs * capacity, dtype=torch.long, device=device)

    def fill(self, samples: Sequence[Samples]) -> None:
        """Take over a task's samples, one set a run."""
        for x, y, own in zip(self.x.split(self.capacity), self.y.split(self.capacity), samples, strict=True):
            x[: len(own)].copy_(own.x.movedim(1, -1) if self.channels_last else own.x)
            y[: len(own)].copy_(own.y)

    def fetch(self, orders: Tensor, step: Tensor) -> tuple[Tensor, Tensor]:
        """Return a step's inputs ``[L, B, ...]`` and labels ``[L, B]``, as :func:`fetch` does."""
        return fetch(self.x, self.y, orders, step, channels_last=self.channels_last)


def fetch(x: Tensor, y: Tensor, orders: Tensor, step: Tensor, *, channels_last: bool) -> tuple[Tensor, Tensor]:
    """Look up the samples of a step in a table: ``orders`` has indices ``[L, steps, B]``, ``step`` one number."""
    chosen = orders.index_select(1, step).squeeze(1)
    found = x.index_select(0, chosen.flatten()).unflatten(0, chosen.shape)
    return found.movedim(-1, 2) if channels_last else found, y.index_select(0, chosen.flatten()).view(chosen.shape)
