"""Implicit holds: each process pulls its own part, and all come to what one process would."""

import warnings

import torch
from torch.nn.parallel import DistributedDataParallel

import anchorhold
from tests.distributed.fsdp_checks import sharded
from tests.distributed.problem import SIZE, share, whole
from tests.guard.helpers import batch, loss, net, weights


def trained(model, share_of, form="diagonal", kind=torch.optim.Adam, every=1):
    """Train a model that is held implicitly, on this process's part of each batch, and return its guard."""
    options = anchorhold.GuardOptions(implicit=True, pull_every=every)
    guard = anchorhold.Guard(model, "EWC", strength=50.0, form=form, options=options)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="torch.distributed runs several processes")  # of which one is alone
        guard.consolidate([share_of(batch(9, SIZE))])
    optimizer = kind(model.parameters(), lr=0.05)
    guard.attach(optimizer)
    for i in range(3):
        optimizer.zero_grad()
        loss(model, share_of(batch(i, SIZE))).backward()
        optimizer.step()
    return guard


def fsdp_each_pulls_its_own_part(here):
    for kind in (torch.optim.SGD, torch.optim.Adam):
        model, alone = sharded(here), net()
        trained(model, lambda data: share(data, here.rank, here.size), kind=kind)
        trained(alone, lambda data: data, kind=kind)
        for name, value in weights(alone).items():
            found = whole(dict(model.named_parameters())[name].detach())
            torch.testing.assert_close(found, value, rtol=1e-8, atol=1e-10)


def ddp_all_pull_alike(here):
    for form, kind in (("diagonal", torch.optim.Adam), ("rotated", torch.optim.SGD)):
        model, alone = DistributedDataParallel(net()), net()
        trained(model, lambda data: share(data, here.rank, here.size), form, kind)
        trained(alone, lambda data: data, form, kind)
        for name, value in weights(alone).items():
            torch.testing.assert_close(weights(model.module)[name], value, rtol=1e-7, atol=1e-9)


def all_pull_alike_every_second_step(here):
    """Two steps and a pull, one more step, and a pull for that as the guard is detached."""
    for form in ("diagonal", "rotated"):
        for spread in (sharded(here), DistributedDataParallel(net())):
            alone = net()
            own = {"form": form, "kind": torch.optim.SGD, "every": 2}
            guards = trained(spread, lambda data: share(data, here.rank, here.size), **own)
            expected = trained(alone, lambda data: data, **own)
            assert "1 since the last pull" in repr(guards)
            waiting = guards.state_dict()["waiting"]
            assert {name: steps for name, (steps, _) in waiting.items()} == dict.fromkeys(weights(alone), 1)
            guards.detach()
            expected.detach()
            model = getattr(spread, "module", spread)
            for name, value in weights(alone).items():
                found = whole(dict(model.named_parameters())[name].detach())
                torch.testing.assert_close(found, value, rtol=1e-7, atol=1e-9)


CHECKS = [fsdp_each_pulls_its_own_part, ddp_all_pull_alike, all_pull_alike_every_second_step]
