"""RWalk, asymmetric SI, online EWC, A-GEM and consolidation by itself in several processes, as one would have them."""

import warnings

import pytest
import torch
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

import anchorhold
from tests.distributed.problem import SIZE, share, whole
from tests.distributed.processes import all_equal
from tests.guard.helpers import batch, loss, net, weights

OLD = [batch(50, SIZE)]


def made(model, kind, rank=0, size=1):
    measures = {
        "RWalk": (anchorhold.RWalk(every=2), ()),
        "ALASSO": (anchorhold.measures.AsymmetricSI(measuring_factor=2.0), [anchorhold.holds.Asymmetric(3.0)]),
        "online-EWC": (anchorhold.OnlineEWC(decay=0.5), ()),
        "A-GEM": ("SI", [anchorhold.holds.AveragedGradient([share(old, rank, size) for old in OLD])]),
    }
    measure, holds = measures[kind]
    return anchorhold.Guard(model, measure, strength=0.5, holds=holds, from_scratch=True)


def learned(model, kind, rank=0, size=1):
    """Two tasks of three steps each, the second of them held."""
    guard = made(model, kind, rank, size)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    guard.attach(optimizer)
    for task in range(2):
        for seed in range(10 * task, 10 * task + 3):
            own = share(batch(seed, SIZE), rank, size)
            optimizer.zero_grad()
            guard.gradients.samples([own])
            (loss(model, own) * (1 if kind != "A-GEM" or not task else -1)).backward()
            optimizer.step()
        guard.consolidate([share(batch(100 + task, SIZE), rank, size)])
    return guard


def assert_alike(guard, model, kind):
    alone = net()
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="torch.distributed runs several")
        expected = learned(alone, kind)
    for name, value in expected.importance.items():
        torch.testing.assert_close(whole(guard.importance[name]), value, rtol=1e-8, atol=1e-12)
    for name, value in weights(model).items():
        torch.testing.assert_close(whole(value), weights(alone)[name], rtol=1e-9, atol=1e-12)


def relatives_of_a_ddp_model(here):
    for kind in ("RWalk", "ALASSO", "online-EWC", "A-GEM"):
        model = DistributedDataParallel(net())
        guard = learned(model, kind, here.rank, here.size)
        assert all_equal(guard.importance)
        assert_alike(guard, model.module, kind)


def relatives_of_a_sharded_model(here):
    for kind in ("ALASSO", "online-EWC", "RWalk"):
        model = fully_shard(net(), mesh=init_device_mesh("cpu", (here.size,)))
        assert_alike(learned(model, kind, here.rank, here.size), model, kind)
    model = fully_shard(net(), mesh=init_device_mesh("cpu", (here.size,)))
    with pytest.raises(anchorhold.errors.ConfigurationError, match="'A-GEM' with a sharded model"):
        learned(model, "A-GEM", here.rank, here.size)


def all_processes_consolidate_at_the_same_step(here):
    guard = anchorhold.Guard(DistributedDataParallel(net()), "MAS", strength=1.0)
    plateaus = anchorhold.task_free.Plateaus(window=2, mean=0.5, variance=0.1)
    task_free = anchorhold.TaskFree(guard, plateaus=plateaus, hard=3)
    for step, value in enumerate([2.0, 0.1, 0.1, 0.1]):
        task_free.step(value + 0.2 * (2 * here.rank - 1), share(batch(step, SIZE), here.rank, here.size))
    assert task_free.consolidated == [3]
    assert all_equal(guard.importance)


CHECKS = [relatives_of_a_ddp_model, relatives_of_a_sharded_model, all_processes_consolidate_at_the_same_step]
