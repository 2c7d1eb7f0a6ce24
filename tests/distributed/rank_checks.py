"""The ranks of a DDP job as independent estimates: unbiased SOS without a second batch."""

import contextlib

import pytest
import torch
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks
from torch.nn.parallel import DistributedDataParallel

import anchorhold
from anchorhold.measures.base import Seen
from tests.distributed.problem import SIZE, share
from tests.distributed.processes import all_equal
from tests.guard.helpers import batch, loss, net, weights

MEASURE = anchorhold.SOS(alpha="unbiased", beta2=0.6)


def gradients(model, data):
    found = torch.autograd.grad(loss(model, data), list(model.parameters()))
    return {name: gradient for (name, _), gradient in zip(model.named_parameters(), found, strict=True)}


def over_all_pairs(size, seeds, measure=MEASURE, batches=None):
    """Train in one process; feed the measure's own definition, step by step, with each pair of the ranks' gradients."""
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    pairs = [(r, s) for r in range(size) for s in range(size) if r != s]
    states = {name: [torch.zeros_like(p) for _ in pairs] for name, p in model.named_parameters()}
    for seed in seeds:
        data = batches(seed) if batches else batch(seed, SIZE)
        found = [gradients(model, share(data, rank, size)) for rank in range(size)]
        for name, parameter in model.named_parameters():
            parameter.grad = sum(own[name] for own in found) / size
            for state, (r, s) in zip(states[name], pairs, strict=True):
                seen = Seen(found[r][name], found[s][name], samples=len(data[0]) // size)
                measure.update_({"second_moment": state}, seen)
        optimizer.step()
    return model, {name: sum(kept) / len(pairs) for name, kept in states.items()}


def start(here, measure=MEASURE, samples=None, watch=(), **options):
    model = DistributedDataParallel(net())
    guard = anchorhold.Guard(model, measure, strength=0.0, watch=watch)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    guard.attach(optimizer)
    guard.gradients.ranks(samples or SIZE // here.size, **options)
    return model, guard, optimizer


def steps(here, model, optimizer, seeds):
    for seed in seeds:
        optimizer.zero_grad()
        loss(model, share(batch(seed, SIZE), here.rank, here.size)).backward()
        optimizer.step()


def check(guard, expected, label="SOS", **tolerance):
    raw = guard.consolidate()[label].raw
    for name, value in expected.items():
        torch.testing.assert_close(raw[name], value, **(tolerance or {"rtol": 1e-10, "atol": 1e-15}))
    assert all_equal(raw)


def ranks_give_the_mean_over_all_their_pairs(here):
    """With SI watching too, whose walk waits for the step."""
    for watch in ([], ["SI"]):
        model, guard, optimizer = start(here, watch=watch)
        steps(here, model, optimizer, range(4))
        plain, expected = over_all_pairs(here.size, range(4))
        for name, value in weights(plain).items():
            torch.testing.assert_close(weights(model.module)[name], value)
        check(guard, expected)


def ranks_accumulate_without_sync(here):
    model, guard, optimizer = start(here)
    for seed in range(3):
        optimizer.zero_grad()
        mine = share(batch(seed, SIZE), here.rank, here.size)
        for part in range(2):
            with model.no_sync() if part == 0 else contextlib.nullcontext():
                (loss(model, tuple(half.chunk(2)[part] for half in mine)) / 2).backward()
        optimizer.step()
    check(guard, over_all_pairs(here.size, range(3))[1])


def ranks_may_be_scaled_and_clipped(here):
    """What a scaler and clipping do to the gradient, they do to those of the ranks; a skipped step does not count."""
    plain, expected = over_all_pairs(here.size, range(1))
    clip = 0.5 * float(torch.nn.utils.get_total_norm([p.grad for p in plain.parameters()]))
    for fused in (False, True):
        model, guard, _ = start(here)
        guard.detach()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, fused=fused)
        guard.attach(optimizer)
        scaler = torch.amp.GradScaler("cpu", init_scale=2.0**12)
        for overflow in (True, False):
            optimizer.zero_grad()
            value = loss(model, share(batch(0, SIZE), here.rank, here.size))
            scaler.scale(value * (float("inf") if overflow else 1.0)).backward()
            if not fused:
                scaler.unscale_(optimizer)
                torch.nn.utils.clip_grad_norm_(model.parameters(), clip)
            scaler.step(optimizer)
            scaler.update()
        factor = 1.0 if fused else 0.25
        check(guard, {name: factor * value for name, value in expected.items()}, rtol=1e-5, atol=1e-12)


def ranks_go_through_a_hook_of_ones_own(here):
    """bfloat16 has eight bits, and the mean's rounding enters relative to its square."""
    model, guard, optimizer = start(here, comm_hook=default_hooks.bf16_compress_hook)
    steps(here, model, optimizer, [0])
    expected = over_all_pairs(here.size, [0])[1]
    for name, value in guard.gradients.path.running["SOS"]["second_moment"].items():
        assert float((value - expected[name]).norm()) < 0.02 * float(expected[name].norm())
        assert not torch.equal(value, expected[name])


def ranks_step_aside_for_a_second_batch(here):
    model, guard, optimizer = start(here, anchorhold.SOS(alpha=0.5, beta2=0.0, normalise=False))
    optimizer.zero_grad()
    loss(model, share(batch(0, SIZE), here.rank, here.size)).backward()
    guard.gradients.independent(loss(model, share(batch(1, SIZE), here.rank, here.size)))
    optimizer.step()
    first, second = (gradients(net(), batch(seed, SIZE)) for seed in (0, 1))
    check(guard, {name: (first[name] - 0.5 * second[name]) ** 2 for name in first})


def ranks_are_refused_where_they_cannot_serve(here):
    model = DistributedDataParallel(net())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def refused(message, measure=MEASURE, target=model):
        guard = anchorhold.Guard(target, measure)
        guard.attach(optimizer)
        with pytest.raises(anchorhold.errors.OrderError, match=message):
            guard.gradients.ranks(6)
        guard.detach()

    refused("took no part in the step; those of all ranks do", anchorhold.SIU())
    refused("took no part in the step", anchorhold.SIB())
    refused("needs the model in its DDP wrapper", target=model.module)
    model.register_comm_hook(None, default_hooks.allreduce_hook)
    refused("has a communication hook already")


def ranks_are_missed_where_they_were_not_seen(here):
    model, guard, optimizer = start(here)
    data = share(batch(0, SIZE), here.rank, here.size)
    with model.no_sync():
        loss(model, data).backward()
    with pytest.raises(anchorhold.errors.OrderError, match="has not been averaged over the ranks"):
        optimizer.step()
    optimizer.zero_grad()
    for _ in range(2):
        loss(model, data).backward()
    with pytest.raises(anchorhold.errors.OrderError, match="averaged more than once"):
        optimizer.step()
    optimizer.zero_grad(set_to_none=False)
    loss(model, data).backward()
    guard.gradients.observe(loss(model, data))
    with pytest.raises(anchorhold.errors.OrderError, match=r"leave gradients\.observe"):
        optimizer.step()
    guard.gradients.restart_task()
    optimizer.step()
    unknown = DistributedDataParallel(net())
    guard = anchorhold.Guard(unknown, anchorhold.SOS(alpha="unbiased"))
    optimizer = torch.optim.SGD(unknown.parameters(), lr=0.1)
    guard.attach(optimizer)
    guard.gradients.ranks()
    loss(unknown, data).backward()
    with pytest.raises(anchorhold.errors.ConfigurationError, match="how many samples"):
        optimizer.step()


def ranks_need_not_zero_the_gradients_of_what_nobody_trains(here):
    """A layer before the trained ones, of no optimizer, gathers gradients for ever; nothing is kept of the others."""
    network = net()
    model = DistributedDataParallel(network)
    guard = anchorhold.Guard(model, MEASURE, strength=0.0, protect="2.weight")
    optimizer = torch.optim.SGD(network[2].parameters(), lr=0.1)
    guard.attach(optimizer)
    guard.gradients.ranks(SIZE // here.size)
    steps(here, model, optimizer, range(3))
    assert guard.gradients.path.steps == 3
    assert id(network[2].bias) not in guard._attachment.watcher.measures.rank_gradients._squares


CHECKS = [check for name, check in list(globals().items()) if name.startswith("ranks_")]
