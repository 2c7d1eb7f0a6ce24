"""Training samples that a run sets aside to keep: by them it sees, later, how much it has lost of each task.

They are taken from the training samples, so that test samples judge and validation samples choose settings, and nothing
else. From then on nothing trains on them, measures importance from them or puts them into a buffer: what a network was
trained on it loses least, and would say too little.
"""

from collections.abc import Callable
from dataclasses import replace

import torch

from anchorhold.errors import ConfigurationError
from anchorhold.seeding import generator_for
from anchorhold_lab.scenarios.tasks import Samples, Scenario, Task

Split = tuple[Samples, Samples | None]
"""What is left to learn from, and what was taken out of it."""


def set_aside(scenario: Scenario, count: int, seed: int) -> Scenario:
    """Return a scenario with so many random training samples of each task set aside, ``Task.kept``.

    Args:
        scenario: the tasks.
        count: how many of each; at most half of what there is.
        seed: the same seed sets the same samples aside.
    """
    smallest = min(scenario.tasks, key=lambda task: len(task.stored_train))
    if 2 * count > len(smallest.stored_train):
        raise ConfigurationError(
            f"kept={count} of the {len(smallest.stored_train):,} training samples of {smallest.name!r}; expected at "
            f"most half of them, such as kept={len(smallest.stored_train) // 5} (--kept on the command line)."
        )

    def taken(samples: Samples) -> Split:
        shuffled = torch.randperm(len(samples), generator=generator_for(seed, "kept", len(samples)))
        return samples.select(shuffled[count:]), samples.select(shuffled[:count])

    tasks = [replace(task, stored_train=train, stored_kept=kept) for task, (train, kept) in split_once(scenario, taken)]
    return replace(scenario, tasks=tuple(tasks))


def split_once(scenario: Scenario, split: Callable[[Samples], Split]) -> list[tuple[Task, Split]]:
    """Return each task with its training samples split in two; those that tasks share are split once."""
    splits: dict[int, Split] = {}
    for task in scenario.tasks:
        if id(task.stored_train) not in splits:
            splits[id(task.stored_train)] = split(task.stored_train)
    return [(task, splits[id(task.stored_train)]) for task in scenario.tasks]
