"""Tasks that are less alike than a scenario has them: of unequal sizes, or in another order."""

from collections.abc import Sequence
from dataclasses import replace

import torch

from anchorhold.seeding import generator_for
from anchorhold_lab.scenarios.tasks import Samples, Scenario


def with_sizes(scenario: Scenario, shares: Sequence[float], seed: int) -> Scenario:
    """Return a scenario of which each task has a share of its training samples, at least one; all else stays.

    Args:
        scenario: the tasks.
        shares: one for each task, above 0 and up to 1.
        seed: the same seed takes the same samples, and of two shares the smaller one's are among the larger one's.
    """
    taken: dict[tuple[int, float], Samples] = {}

    def share_of(samples: Samples, share: float) -> Samples:
        if share == 1:
            return samples
        if (id(samples), share) not in taken:  # tasks may share their samples
            shuffled = torch.randperm(len(samples), generator=generator_for(seed, "sizes", len(samples)))
            taken[id(samples), share] = samples.select(shuffled[: max(1, round(share * len(samples)))])
        return taken[id(samples), share]

    tasks = zip(scenario.tasks, shares, strict=True)
    return replace(
        scenario, tasks=tuple(replace(task, stored_train=share_of(task.stored_train, share)) for task, share in tasks)
    )


def in_order(scenario: Scenario, order: Sequence[int]) -> Scenario:
    """Return the same tasks in another order, by their numbers from 0; each keeps its head."""
    return replace(scenario, tasks=tuple(scenario.tasks[number] for number in order))
