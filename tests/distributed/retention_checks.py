"""Kept inputs and tolerances in several processes: what one process with all inputs does, and ranks that disagree."""

import math
import warnings

import pytest
import torch
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

import anchorhold
from anchorhold import Tolerance
from tests.distributed.problem import SIZE, share, whole
from tests.distributed.processes import all_equal
from tests.guard.helpers import batch, loss, net, weights

KEPT = [batch(60, SIZE), batch(61, SIZE)]


def learned(model, rank=0, size=1):
    """Consolidate, keep, and learn something new under a tolerance."""
    guard = anchorhold.Guard(model, anchorhold.Fisher(), tolerance=Tolerance(0.002, every=1))
    guard.consolidate([share(batch(50, SIZE), rank, size)])
    guard.keep([share(kept, rank, size) for kept in KEPT], "old")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.3)
    guard.attach(optimizer)
    for seed in range(6):
        optimizer.zero_grad()
        loss(model, share(batch(seed, SIZE), rank, size)).backward()
        optimizer.step()
    return guard


def check_as_alone(model, guard):
    alone = net()
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="torch.distributed runs several processes")
        expected = learned(alone)
    assert len(guard.control.trace) == 7
    every = [torch.tensor([point.kl, point.strength], dtype=torch.float64) for point in guard.control.trace]
    assert all_equal({"trace": torch.stack(every)})
    for found, point in zip(guard.control.trace, expected.control.trace, strict=True):
        assert found.step == point.step
        assert math.isclose(found.kl, point.kl, rel_tol=1e-8, abs_tol=1e-12)
        assert math.isclose(found.strength, point.strength, rel_tol=1e-8)
        assert math.isclose(found.predicted, point.predicted, rel_tol=1e-8, abs_tol=1e-12)
    found, wanted = guard.retention()["old"], expected.retention()["old"]
    assert (found.count, found.agreement) == (wanted.count, wanted.agreement)
    for one, two in ((found.kl, wanted.kl), (found.loss_then, wanted.loss_then), (found.loss_now, wanted.loss_now)):
        assert math.isclose(one, two, rel_tol=1e-8)
    back, alone_back = guard.pull_back(), expected.pull_back()
    assert (back.outcome, back.share) == (alone_back.outcome, alone_back.share)
    for (name, value), other in zip(model.named_parameters(), alone.parameters(), strict=True):
        torch.testing.assert_close(whole(value.detach()), other.detach(), rtol=1e-8, atol=1e-10, msg=name)


def ddp_a_tolerance_is_followed_as_by_one_process(here):
    model = net()
    guard = learned(DistributedDataParallel(model), here.rank, here.size)
    check_as_alone(model, guard)


def fsdp_a_tolerance_is_followed_as_by_one_process(here):
    model = net()
    mesh = init_device_mesh("cpu", (here.size,))
    fully_shard(model[0], mesh=mesh)
    model = fully_shard(model, mesh=mesh)
    guard = learned(model, here.rank, here.size)
    check_as_alone(model, guard)


def fsdp_inputs_that_processes_would_run_differently_are_refused(here):
    model = fully_shard(net(), mesh=init_device_mesh("cpu", (here.size,)))
    guard = anchorhold.Guard(model, anchorhold.Fisher())
    with pytest.raises(anchorhold.errors.BatchError, match=r"The processes give \[1, 2\] batches to be kept"):
        guard.keep(KEPT[: here.rank + 1])
    assert not guard.kept


def ddp_ranks_that_keep_other_sets_are_refused(here):
    model = DistributedDataParallel(net())
    guard = anchorhold.Guard(model, anchorhold.Fisher(), tolerance=0.1)
    guard.consolidate([batch(50)])
    guard.keep([share(kept, here.rank, here.size) for kept in KEPT], f"of rank {here.rank}")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.3)
    guard.attach(optimizer)
    before = weights(model)
    loss(model, batch(0)).backward()
    with pytest.raises(
        anchorhold.errors.ConfigurationError, match=r"ranks disagree on the kept sets.*the step was not taken"
    ):
        optimizer.step()
    for name, value in model.named_parameters():
        assert torch.equal(value, before[name])


def ddp_what_one_rank_cannot_keep_none_keeps(here):
    model = DistributedDataParallel(net())
    guard = anchorhold.Guard(model, anchorhold.Fisher())
    x = batch(0)[0]
    spoilt = x.clone().fill_(torch.nan) if here.rank else x
    with pytest.raises(anchorhold.errors.NotFiniteError, match="so nothing was kept"):
        guard.keep([spoilt])
    assert not guard.kept


def ddp_inputs_that_all_ranks_keep_are_told_of(here):
    guard = anchorhold.Guard(DistributedDataParallel(net()), anchorhold.Fisher())
    with pytest.warns(anchorhold.AnchorholdWarning, match=r"2 of 2 processes keep the same inputs .* factor of 1\.4"):
        guard.keep([KEPT[0]], "old")
    guard.keep([share(KEPT[0], here.rank, here.size)], "parts")


CHECKS = [
    ddp_inputs_that_all_ranks_keep_are_told_of,
    ddp_a_tolerance_is_followed_as_by_one_process,
    fsdp_a_tolerance_is_followed_as_by_one_process,
    fsdp_inputs_that_processes_would_run_differently_are_refused,
    ddp_ranks_that_keep_other_sets_are_refused,
    ddp_what_one_rank_cannot_keep_none_keeps,
]
