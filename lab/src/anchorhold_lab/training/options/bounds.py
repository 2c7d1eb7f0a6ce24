"""What no way of keeping is likely to beat: all tasks at once, or each by itself.

Joint training learns each task together with all before it, as if nothing had to be kept at all; training anew gives
every task a network of its own. The learner asks here which samples a task has, and which heads they go through.
"""

import itertools
from collections.abc import Collection, Iterable, Sequence
from typing import Literal

import torch
from torch import Tensor

from anchorhold.errors import ConfigurationError
from anchorhold.measures import FineTune, Measure
from anchorhold_lab.scenarios import Samples, Task

Trains = Literal["sequentially", "jointly", "anew"]
"""sequentially: one task after another, with what protects them. jointly: each task together with all before it, each
sample through its own task's head; from where the network stands, or from new weights with ``reinitialise``. anew: each
task from new weights, and by itself; every task is judged by the network that has learned it."""


def training_sizes(sizes: Iterable[int], trains: Trains) -> list[int]:
    """Return how many samples each task is learned from, given how many it has."""
    return list(itertools.accumulate(sizes)) if trains == "jointly" else list(sizes)


def together(tasks: Sequence[Task]) -> Samples:
    """Return the training samples of several tasks, one task's after another's."""
    every = [task.train for task in tasks]
    return Samples(torch.cat([each.x for each in every]), torch.cat([each.y for each in every]))


def own_heads(tasks: Sequence[Task], chosen: Tensor) -> Tensor:
    """Return the head of each of some samples among those of several tasks together."""
    ends = torch.tensor([len(task.stored_train) for task in tasks], device=chosen.device).cumsum(0)
    heads = torch.tensor([task.head for task in tasks], device=chosen.device)
    return heads[torch.bucketize(chosen, ends, right=True)]


def check_unprotected(trains: Trains, measure: Measure, beside: Collection[object]) -> None:
    """Refuse to protect, or to watch, where there is nothing to keep: the numbers would mean something else."""
    if trains != "sequentially" and (beside or not isinstance(measure, FineTune)):
        raise ConfigurationError(
            f"trains={trains!r} with {measure.name}{' and ' if beside else ''}{', '.join(map(str, beside))}: expected "
            "measure='fine-tune', no holds, and nothing that watches, since it is a bound on what protecting can reach."
        )
