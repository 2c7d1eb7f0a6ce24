"""State in 8 bits with several processes: the same bytes on all of them, and refused where parameters are in parts."""

import warnings

import pytest
import torch
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

import anchorhold
from anchorhold.errors import ConfigurationError
from anchorhold.tensors.packed import PackedImportance, PackedWeights
from tests.distributed.problem import share
from tests.distributed.processes import all_equal
from tests.guard.test_state_in_8_bits import batch, guarded, net

SIZE = 12


def learned(model, rank=0, size=1):
    """A guard that has been through two tasks, each process with its share of the samples."""
    guard, optimizer = guarded(model, "EWC", torch.optim.SGD)
    for task in range(2):
        for seed in range(10 * task, 10 * task + 3):
            optimizer.zero_grad()
            x, y = share(batch(seed, SIZE), rank, size)
            torch.nn.functional.cross_entropy(model(x), y).backward()
            optimizer.step()
        guard.consolidate([share(batch(100 + task, SIZE), rank, size)])
    return guard


def packed_state_of_a_ddp_model(here):
    guard = learned(DistributedDataParallel(net()), here.rank, here.size)
    total, anchor = guard._core.state.driving.total["0.weight"].omega, guard._core.state.anchor["0.weight"]
    assert isinstance(total, PackedImportance) and isinstance(anchor, PackedWeights)
    assert all_equal({str(place): part for place, part in enumerate((*total.parts, *anchor.parts))})
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="torch.distributed runs several")
        expected = learned(net())
    for name, omega in expected.importance.items():
        # Sums in another order may round a code up where another is rounded down.
        torch.testing.assert_close(guard.importance[name].float(), omega.float(), rtol=2**-3, atol=1e-12)
        torch.testing.assert_close(guard.anchor[name], expected.anchor[name], rtol=1e-4, atol=1e-5)


def packed_state_of_a_sharded_model_is_refused(here):
    model = fully_shard(net(), mesh=init_device_mesh("cpu", (here.size,)))
    with pytest.raises(ConfigurationError, match=r"'8bit' with parameters.*'0\.weight'.*state_dtype=torch\.bfloat16"):
        anchorhold.Guard(model, "EWC", options=anchorhold.GuardOptions(state_dtype="8bit"))


def packed_state_of_a_model_that_is_sharded_later_is_refused(here):
    model = net()
    guard = anchorhold.Guard(model, "EWC", options=anchorhold.GuardOptions(state_dtype="8bit"))
    fully_shard(model, mesh=init_device_mesh("cpu", (here.size,)))
    with pytest.raises(ConfigurationError, match=r"'8bit' with parameters.*such as '0\.weight'"):
        guard.consolidate([share(batch(0, SIZE), here.rank, here.size)])


CHECKS = [
    packed_state_of_a_ddp_model,
    packed_state_of_a_sharded_model_is_refused,
    packed_state_of_a_model_that_is_sharded_later_is_refused,
]
