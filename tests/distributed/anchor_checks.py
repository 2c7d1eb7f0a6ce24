"""Where the hold is centred, with several processes: as one process would have it."""

import warnings
from operator import attrgetter

import torch
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

import anchorhold
from tests.distributed.problem import SIZE, share, whole
from tests.distributed.processes import all_equal
from tests.forms.toy_kronecker import ToyKronecker
from tests.guard.helpers import batch, loss, net
from tests.helpers import grouped


def learned(model, rank=0, size=1, **settings):
    """A guard that is centred at the mean, after two tasks and a half."""
    guard = anchorhold.Guard(
        model, anchorhold.Fisher(), strength=0.5, anchor="mean", from_scratch=True, **grouped(**settings)
    )
    return taught(guard, model, rank, size)


def taught(guard, model, rank=0, size=1):
    """Two tasks of two steps, and two steps of a third."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    guard.attach(optimizer)
    for task in range(3):
        for seed in range(10 * task, 10 * task + 2):
            optimizer.zero_grad()
            loss(model, share(batch(seed, SIZE), rank, size)).backward()
            optimizer.step()
        if task < 2:
            guard.consolidate([share(batch(100 + task, SIZE), rank, size)])
    return guard


def check(here, model, **settings):
    guard = learned(model, here.rank, here.size, **settings)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="torch.distributed runs several")
        expected = learned(net(), **settings)
    assert guard.held.linear_term.keys() == expected.held.linear_term.keys()
    for kind in ("parameters", "anchor", "held.linear_term"):
        for name, value in attrgetter(kind)(expected).items():
            found = attrgetter(kind)(guard)[name]
            torch.testing.assert_close(whole(found.detach()), value.detach(), rtol=1e-9, atol=1e-12, msg=kind)
    torch.testing.assert_close(whole(guard.penalty()), expected.penalty(), rtol=1e-8, atol=1e-12)
    return guard


def anchor_of_a_ddp_model(here):
    for settings in ({}, {"gradient_term": True}, {"gradient_term": True, "form": ToyKronecker()}):
        guard = check(here, DistributedDataParallel(net()), **settings)
        assert all_equal(guard.anchor) and all_equal(guard.held.linear_term)


def anchor_of_a_sharded_model(here):
    for settings in ({}, {"gradient_term": True}):
        guard = check(here, fully_shard(net(), mesh=init_device_mesh("cpu", (here.size,))), **settings)
        for name, tensor in (guard.anchor | guard.held.linear_term).items():
            assert tensor.placements == guard.parameters[name].placements


CHECKS = [anchor_of_a_ddp_model, anchor_of_a_sharded_model]
