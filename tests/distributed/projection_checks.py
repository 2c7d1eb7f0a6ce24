"""Projected steps, with several processes: each has inputs of its own, and all of them one space."""

import warnings

import pytest
import torch
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

import anchorhold
from tests.distributed.problem import SIZE, share
from tests.distributed.processes import all_equal
from tests.guard.helpers import batch, loss, net


def learned(model, method, rank=0, size=1):
    """Two tasks of three steps each, the second of them projected; the first process has more data than others."""
    hold = anchorhold.Projection(0.5, None, method=method, alpha=1.0)
    guard = anchorhold.Guard(model, "fine-tune", holds=[hold])
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    guard.attach(optimizer)
    for task in range(2):
        for seed in range(10 * task, 10 * task + 3):
            optimizer.zero_grad()
            loss(model, share(batch(seed, SIZE), rank, size)).backward()
            optimizer.step()
        data = [share(batch(100 + task, SIZE), rank, size)]
        guard.consolidate([*data, batch(200 + task, 3)] if rank == 0 else data)
    return hold, model


def projection_of_a_ddp_model(here):
    for method in ("gpm", "owm"):
        hold, model = learned(DistributedDataParallel(net()), method, here.rank, here.size)
        assert all_equal(hold.state()) and all_equal(dict(model.module.named_parameters()))
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="torch.distributed runs several")
            alone, expected = learned(net(), method)
        assert hold.free == pytest.approx(alone.free)
        for one, other in zip(model.parameters(), expected.parameters(), strict=True):
            torch.testing.assert_close(one, other, rtol=1e-7, atol=1e-9)


def projection_where_one_process_has_no_data(here):
    hold = anchorhold.Projection(0.5)
    guard = anchorhold.Guard(DistributedDataParallel(net()), "fine-tune", holds=[hold])
    guard.consolidate([batch(1, 8)] if here.rank == 1 else [])
    assert hold.free and all_equal(hold.state())
    kept = hold.state()
    with pytest.raises(anchorhold.errors.BatchError, match="was given no sample"):
        guard.consolidate([])
    x, y = batch(1, 8)
    with pytest.raises(anchorhold.errors.NotFiniteError, match="NaN"):
        guard.consolidate([(x * (torch.nan if here.rank == 1 else 1), y)])
    assert guard.tasks == 1 and all(torch.equal(kept[key], hold.state()[key]) for key in kept)


def projection_of_a_sharded_model_is_refused(here):
    model = fully_shard(net(), mesh=init_device_mesh("cpu", (here.size,)))
    guard = anchorhold.Guard(model, "fine-tune", holds=["projection"])
    guard.attach(optimizer := torch.optim.SGD(model.parameters(), lr=0.1))
    loss(model, batch(0, 8)).backward()
    with pytest.raises(
        anchorhold.errors.ConfigurationError, match=r"'projection' with parameters that are spread .*Use DDP"
    ):
        optimizer.step()
    with pytest.raises(anchorhold.errors.ConfigurationError, match="spread over processes"):
        guard.consolidate([batch(0, 8)])


CHECKS = [
    projection_of_a_ddp_model,
    projection_where_one_process_has_no_data,
    projection_of_a_sharded_model_is_refused,
]
