"""Whatever goes wrong on one rank is raised on every rank, none waits for ever, and nothing has changed."""

import copy
import itertools

import pytest
import torch
from torch.nn.parallel import DistributedDataParallel

import anchorhold
from tests.distributed.processes import everyones
from tests.guard.helpers import batch, loss, net
from tests.helpers import grouped


def unchanged(guard, act, error, message):
    kept = copy.deepcopy(guard.state_dict())
    with pytest.raises(error, match=message) as caught:
        act()
    state = guard.state_dict()
    assert all(torch.equal(state["tensors"][key], value) for key, value in kept["tensors"].items())
    assert {k: v for k, v in state.items() if k != "tensors"} == {k: v for k, v in kept.items() if k != "tensors"}
    return caught.value


def consolidated(measure="EWC", **options):
    guard = anchorhold.Guard(DistributedDataParallel(net()), measure, **grouped(**options))
    guard.consolidate([batch(0)])
    return guard


def mistake_protecting_in_several_processes(here):
    with pytest.raises(anchorhold.errors.ConfigurationError, match=r"protect\(\) in one of several processes"):
        anchorhold.protect(net(), [batch(0)])


def mistake_nan_on_one_rank(here):
    guard = consolidated()
    x, y = batch(1)
    mine = [(x, y), (x * float("nan"), y)] if here.rank == 1 else itertools.repeat((x, y), 10**9)
    error = unchanged(guard, lambda: guard.consolidate(mine), anchorhold.errors.NotFiniteError, "outputs hold NaN")
    assert str(error).startswith("Rank 1 of 2: ") == (here.rank == 0)
    guard.consolidate([batch(2)])
    assert everyones(guard.tasks) == [2, 2]


def mistake_no_data_on_one_rank(here):
    guard = consolidated()
    unchanged(
        guard,
        lambda: guard.consolidate([batch(1)] if here.rank else None),
        anchorhold.errors.BatchError,
        "measures importance",
    )
    unchanged(guard, lambda: guard.consolidate([]), anchorhold.errors.BatchError, "there were no batches")


def mistake_bounds_that_differ(here):
    guard = consolidated(form="rotated")
    for bounds, message in (
        ((10**6, 4000), "disagree on within: rank 0 has 1000000 and rank 1 has 4000"),
        ((10**6, None), "disagree on within"),
        ((10**6, 0), "within=0: expected a whole number"),
    ):
        unchanged(
            guard,
            lambda own=bounds[here.rank]: guard.consolidate([batch(1)], within=own),
            anchorhold.errors.ConfigurationError,
            message,
        )


def mistake_a_loader_that_breaks_on_one_rank(here):
    def loader():
        yield batch(1)
        if here.rank == 0:
            raise OSError("the disk is gone")
        yield batch(2)

    guard = consolidated()
    kind, message = (OSError, "^the disk") if here.rank == 0 else (anchorhold.AnchorholdError, "Rank 0 of 2: .*OSError")
    unchanged(guard, lambda: guard.consolidate(loader()), kind, message)


def mistake_data_of_one_rank_in_a_rehearsal(here):
    guard = consolidated()
    unchanged(
        guard,
        lambda: guard.rehearse([batch(1)] if here.rank else None),
        anchorhold.errors.BatchError,
        "measures importance",
    )
    unchanged(
        guard,
        lambda: guard.rehearse([(torch.ones(8, 9).double(),)]),
        (RuntimeError, anchorhold.AnchorholdError),
        "shapes",
    )
    guard.rehearse([batch(1)] if here.rank else [batch(1), batch(2)])
    assert everyones(guard.tasks) == [1, 1]


def mistake_weights_that_are_not_finite(here):
    guard = consolidated("L2")
    with torch.no_grad():
        guard.parameters["0.bias"][0] = float("inf")
    unchanged(guard, guard.consolidate, anchorhold.errors.NotFiniteError, "weights '0.bias' are not finite")


def mistake_ranks_that_disagree(here):
    for change, message in [
        (lambda guard: setattr(guard, "strength", 2.0), r"the strength and the decay: rank 0 has \(0.5"),
        (lambda guard: setattr(guard._core.state, "tasks", 5), "the number of consolidated tasks: .* rank 1 has 5"),
        (lambda guard: guard.parameters["2.bias"].data.add_(1e-9), "the weights '2.bias'"),
        (lambda guard: guard.importance["2.bias"].mul_(2), "what is known about '2.bias'"),
    ]:
        guard = consolidated()
        if here.rank == 1:
            change(guard)
        unchanged(guard, lambda kept=guard: kept.consolidate([batch(1)]), anchorhold.errors.ConfigurationError, message)
    measure = anchorhold.Fisher(samples=5 + here.rank)
    guard = anchorhold.Guard(DistributedDataParallel(net()), measure)
    unchanged(
        guard,
        lambda: guard.consolidate([batch(1)]),
        anchorhold.errors.ConfigurationError,
        "the measures: .*'samples': 6",
    )
    guard = anchorhold.Guard(DistributedDataParallel(net()), "EWC", protect="0.*" if here.rank else None)
    unchanged(
        guard, lambda: guard.consolidate([batch(1)]), anchorhold.errors.ConfigurationError, "the protected parameters"
    )
    form = anchorhold.Rotated(damping=0.001 * here.rank)
    guard = anchorhold.Guard(DistributedDataParallel(net()), "EWC", form=form)
    unchanged(
        guard,
        lambda: guard.consolidate([batch(1)]),
        anchorhold.errors.ConfigurationError,
        "its form: .*'damping': 0.001",
    )


def mistake_targets_that_tell_the_ranks_different_things(here):
    """Targets of 0s and 1s on one rank, and others on the next; named, all may be a regression's."""
    x, _ = batch(1)
    with torch.no_grad():
        targets = torch.zeros_like(net()(x))
    if here.rank == 1:
        targets[3, 0] = 3.7
    guard = consolidated()
    message = "Rank 0 of 2 read the outputs as 'bernoulli', .* rank 1 as 'gaussian', .*likelihood="
    unchanged(guard, lambda: guard.consolidate([(x, targets)]), anchorhold.errors.BatchError, message)
    guard = anchorhold.Guard(DistributedDataParallel(net()), anchorhold.Fisher(likelihood="gaussian"))
    guard.consolidate([(x, targets)])


def mistake_a_gradient_that_is_not_finite_on_one_rank(here):
    """DDP averages it into everyone's."""
    model = DistributedDataParallel(net())
    for measure in ("SOS", "SI"):
        guard = anchorhold.Guard(model, measure)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        guard.attach(optimizer)
        x, y = batch(0)
        loss(model, (x * (float("nan") if here.rank else 1.0), y)).backward()
        unchanged(guard, optimizer.step, anchorhold.errors.NotFiniteError, "holds a NaN")
        guard.detach()
        optimizer.zero_grad()


def mistake_a_loss_without_gradient_on_one_rank(here):
    model = DistributedDataParallel(net())
    guard = anchorhold.Guard(model, "SIU")
    guard.attach(torch.optim.SGD(model.parameters(), lr=0.1))
    value = loss(model, batch(0))
    mine = value.detach() if here.rank else value
    unchanged(guard, lambda: guard.gradients.independent(mine), anchorhold.errors.OrderError, "has no gradient")


CHECKS = [check for name, check in list(globals().items()) if name.startswith("mistake_")]
