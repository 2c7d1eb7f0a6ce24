"""Three processes: all pairs of three gradients, and the checkpoint that two processes wrote."""

import torch
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

from tests.distributed.problem import check_checkpoint
from tests.distributed.rank_checks import ranks_give_the_mean_over_all_their_pairs
from tests.guard.helpers import net


def three_ranks_give_the_mean_over_all_their_pairs(here):
    ranks_give_the_mean_over_all_their_pairs(here)


def three_go_on_from_the_checkpoint_of_two(here):
    model = net()
    fully_shard(model, mesh=init_device_mesh("cpu", (here.size,)))
    check_checkpoint(here.folder.parent / "two" / "from_two", model, here.rank, here.size)
    assert torch.distributed.get_world_size() == 3


CHECKS = [three_ranks_give_the_mean_over_all_their_pairs, three_go_on_from_the_checkpoint_of_two]
