"""Which samples each step sees: decided by the seed alone, so that every engine sees the same."""

import torch
from torch import Tensor

from anchorhold.errors import ConfigurationError
from anchorhold.seeding import generator_for


def steps_per_epoch(samples: int, batch_size: int) -> int:
    """Return how many whole batches an epoch has; what is left over waits for the next epoch's order."""
    if not 1 <= batch_size <= samples:
        raise ConfigurationError(f"batch_size={batch_size} for a task of {samples} samples; expected 1 to {samples}.")
    return samples // batch_size


def epoch_order(samples: int, batch_size: int, *, seed: int, task: int, epoch: int) -> Tensor:
    """Return the samples of each step of an epoch, ``[steps, batch_size]``: a new random order every time."""
    steps = steps_per_epoch(samples, batch_size)
    shuffled = torch.randperm(samples, generator=generator_for(seed, "order", task, epoch))
    return shuffled[: steps * batch_size].view(steps, batch_size)


def second_order(samples: int, batch_size: int, *, seed: int, task: int, epoch: int) -> Tensor:
    """Return each step's second batch, drawn with replacement and independently of everything else."""
    steps = steps_per_epoch(samples, batch_size)
    generator = generator_for(seed, "second batch", task, epoch)
    return torch.randint(samples, (steps, batch_size), generator=generator)
