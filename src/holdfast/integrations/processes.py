"""A guard among several processes."""

import torch

from holdfast.consolidation import Consolidator
from holdfast.consolidation.distributed import is_one_of_several


def join_processes(guard: Consolidator) -> None:
    """Let a guard measure with all processes of the job, where it was made from the model before it was wrapped.

    Trainers wrap models in DistributedDataParallel by themselves, so the guard cannot tell from the model.
    """
    if guard.group is None and is_one_of_several():
        guard.group = torch.distributed.group.WORLD
