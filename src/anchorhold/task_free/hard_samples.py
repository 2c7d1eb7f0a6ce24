"""The samples that stand for what was learned in a stream: recent ones, and of those the ones with the largest loss."""

import math
from collections import defaultdict, deque
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from anchorhold.errors import BatchError, NotFiniteError
from anchorhold.holds.of_batches.batch_hold import class_loss
from anchorhold.holds.of_batches.buffers import OUTPUTS_AT_ONCE, Kind, Sample, Stack, samples_of
from anchorhold.settings import whole_number

Losses = Callable[[Any], Tensor | None]
"""Returns the loss of each sample of a batch, ``[N]``; ``None`` where there are no targets."""


class HardSamples:
    """Hard and recent samples.

    Args:
        hard: how many samples with the largest losses are kept.
        recent: how many of the last batches they are chosen from, beside those that were kept before.
    """

    def __init__(self, hard: int = 64, recent: int = 4) -> None:
        self.size = whole_number("hard", hard, "a whole number of at least 1", least=1)
        recent = whole_number("recent", recent, "a whole number of at least 1", least=1)
        self.recent: deque[Any] = deque(maxlen=recent)
        self.hard: list[Sample] = []
        """On the CPU, the hardest first."""

    def take(self, batch: Any) -> None:
        """Take in the batch of a step, as it is: nothing is read before it is needed."""
        self.recent.append(batch)

    def hardest(self, losses_of: Losses) -> list[Sample]:
        """Return the hardest of all, by their losses now; without targets, the last ones. Nothing changes yet."""
        new = [take() for _, take in samples_of(list(self.recent), 0)]
        every = [*self.hard, *new]
        if not every:
            raise BatchError("No sample was given to consolidate with: step(loss, batch) takes the step's batch.")
        losses = self._losses(every, losses_of)
        if losses is None:
            return every[-self.size :]
        if bad := [number for number, loss in enumerate(losses) if math.isnan(loss)]:
            raise NotFiniteError(
                f"{len(bad)} of {len(every)} samples have a loss of NaN, so that the hardest cannot be told. Nothing "
                "was consolidated. Look for NaN in the batches of the last steps, or in the model's outputs."
            )
        order = sorted(range(len(every)), key=lambda i: -losses[i])
        return [every[i] for i in order[: self.size]]

    def keep(self, hardest: list[Sample]) -> None:
        """Let these be the hard ones from now on, and those that come be the recent ones."""
        self.hard = hardest
        self.recent.clear()

    def _losses(self, every: list[Sample], losses_of: Losses) -> list[float] | None:
        """Return the loss of each sample, ``None`` if any has none."""
        if any(sample.target is None for sample in every):
            return None
        places: dict[Kind, list[int]] = defaultdict(list)
        for place, sample in enumerate(every):
            places[sample.kind].append(place)
        found = [0.0] * len(every)
        for kind, stack in _stacks(every).items():
            for start in range(0, len(stack.samples), OUTPUTS_AT_ONCE):
                rows = range(start, min(start + OUTPUTS_AT_ONCE, len(stack.samples)))
                losses = losses_of(stack.drawn(rows).batch)
                if losses is None:
                    return None
                for row, loss in zip(rows, losses.tolist(), strict=True):
                    found[places[kind][row]] = loss
        return found


def as_batches(samples: list[Sample]) -> list[Any]:
    """Return samples as a user would give them, those of one kind together."""
    return [stack.drawn(range(len(stack.samples))).batch for stack in _stacks(samples).values()]


def _stacks(samples: list[Sample]) -> dict[Kind, Stack]:
    found: dict[Kind, list[Sample]] = defaultdict(list)
    for sample in samples:
        found[sample.kind].append(sample)
    return {kind: Stack.of(alike) for kind, alike in found.items()}


def sample_losses(outputs: Tensor, targets: Tensor) -> Tensor:
    """Return the cross-entropy of each sample's labels, or the squared error of real targets of the outputs' shape."""
    if targets.is_floating_point():
        return (outputs - targets.view_as(outputs)).square().flatten(1).mean(1)
    return torch.stack([class_loss(outputs[i : i + 1], targets[i : i + 1]) for i in range(len(outputs))])
