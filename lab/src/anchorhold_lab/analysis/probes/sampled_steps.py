"""Which steps of a task are looked at, where all would be too many, and what they say about the rest."""

import functools
import itertools
import math
import statistics
from collections.abc import Sequence

import torch

from anchorhold.seeding import generator_for


@functools.lru_cache(maxsize=64)
def uniform_sample(steps: int, size: int, *, seed: int, task: int) -> tuple[int, ...]:
    """Return so many steps in order, each as likely as any other; all if there are no more."""
    if size >= steps:
        return tuple(range(steps))
    drawn = torch.randperm(steps, generator=generator_for(seed, "uniform sample", task))[:size]
    return tuple(sorted(drawn.tolist()))


def stretches(steps: int, size: int) -> list[range]:
    """Return size/2 stretches that make up all steps, from each of which two are to be drawn.

    They grow in proportion to their number, because most happens early in a task: the first hold two steps each, and
    so are seen whole.
    """
    count = size // 2
    bounds = [max(2 * i, steps * i * i // count**2) for i in range(count + 1)]
    return [range(start, stop) for start, stop in itertools.pairwise(bounds)]


@functools.lru_cache(maxsize=64)
def stratified_sample(steps: int, size: int, *, seed: int, task: int) -> tuple[int, ...]:
    """Return two random steps of each stretch, in order; all steps if there are no more than ``size``."""
    if size >= steps:
        return tuple(range(steps))
    generator = generator_for(seed, "stratified sample", task)
    pairs = [
        sorted(stretch[i] for i in torch.randperm(len(stretch), generator=generator)[:2].tolist())
        for stretch in stretches(steps, size)
    ]
    return tuple(itertools.chain.from_iterable(pairs))


def estimate_total(values: Sequence[float], steps: int, size: int) -> tuple[float, float]:
    r"""Return the sum over all steps, estimated from a stratified sample's values, with its standard error.

    With N steps in a stretch and s² the variance of its two values, :math:`\sum N \bar x` has the variance
    :math:`\sum N^2 (1-2/N)\, s^2/2`; both are unbiased, whatever the values.
    """
    if size >= steps:
        return math.fsum(values), 0.0
    pairs = zip(values[::2], values[1::2], strict=True)
    total, variance = [], []
    for stretch, pair in zip(stretches(steps, size), pairs, strict=True):
        length = len(stretch)
        total.append(length * statistics.fmean(pair))
        variance.append(length * (length - 2) * (pair[0] - pair[1]) ** 2 / 4)
    return math.fsum(total), math.sqrt(math.fsum(variance))
