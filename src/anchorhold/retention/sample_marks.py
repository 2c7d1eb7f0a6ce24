"""Checksums of samples, by which it is seen whether two sets of inputs have some in common: nothing else is kept."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_flatten

from anchorhold.engine.batches import Batch, read_batch
from anchorhold.tensors.checksums import row_checksums

MOST = 4096
"""Samples of a task that are marked, the first ones."""
MOST_TASKS = 64
"""Of how many tasks marks are kept, the last ones: two MiB in all."""


@dataclass
class SampleMarks:
    """A number for each of some samples: that of their inputs, whatever batches they come in."""

    tasks: list[set[int]] = field(default_factory=lambda: [set()])

    def note(self, batch: Any, limit: int | None = None) -> None:
        """Mark samples of a batch, up to as many as are marked of a task, or fewer."""
        latest = self.tasks[-1]
        left = (MOST if limit is None else min(MOST, limit)) - len(latest)
        if left > 0:
            latest |= set(_marks(batch, left))

    def take(self, others: "SampleMarks") -> None:
        """Take over another task's marks."""
        self.tasks = [*self.tasks, *others.tasks][-MOST_TASKS:]

    def shared_with(self, marks: Sequence[int]) -> int:
        """Return how many samples of some marks are marked here too."""
        return sum(any(mark in task for task in self.tasks) for mark in marks)


def marks_of(batches: Iterable[Any]) -> list[int]:
    """Return the marks of some batches' samples, the first ones, as many as are marked of a task."""
    found: list[int] = []
    for batch in batches:
        found += _marks(batch, MOST - len(found))
        if len(found) >= MOST:
            break
    return found


def _marks(batch: Any, most: int) -> list[int]:
    """Return the marks of the first samples of a batch, by what the model is given of them."""
    leaves = tree_flatten(batch.inputs if isinstance(batch, Batch) else batch)[0]
    device = next((leaf.device for leaf in leaves if isinstance(leaf, Tensor)), torch.device("cpu"))
    read = batch if isinstance(batch, Batch) else read_batch(batch, device)
    own = [
        leaf[:most]
        for place, leaf in enumerate(tree_flatten(read.inputs)[0])
        if place not in read.shared and isinstance(leaf, Tensor) and leaf.layout is torch.strided
    ]
    found: list[int] = row_checksums(own).tolist() if own else []
    return found
