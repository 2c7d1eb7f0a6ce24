"""What the estimates estimate: means over every possible batch of a small data set, so without statistical noise."""

import copy
import itertools

import pytest
import torch
from torch import nn

import anchorhold
from tests import path_oracle as oracle


@pytest.fixture
def data():
    generator = torch.Generator().manual_seed(3)
    x = torch.randn(4, 3, generator=generator, dtype=torch.float64)
    return x, torch.tensor([0, 1, 2, 0])


@pytest.fixture
def net():
    torch.manual_seed(2)
    return nn.Linear(3, 3).double()


def loss(model, data, chosen):
    chosen = list(chosen)
    return nn.functional.cross_entropy(model(data[0][chosen]), data[1][chosen])


def raw_after_one_step(net, measure, act):
    model = copy.deepcopy(net)
    guard = anchorhold.Guard(model, measure)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.1)
    guard.attach(optimizer)
    act(model, guard)
    optimizer.step()
    return guard.consolidate()[measure.name].raw


def mean(results):
    results = list(results)
    return {name: sum(r[name] for r in results) / len(results) for name in results[0]}


EVERY = (0, 1, 3)  # the samples that batches are drawn from
PAIRS = list(itertools.product(EVERY, repeat=2))  # every batch of two, drawn with replacement


def with_second_batch(data, first, second):
    def act(model, guard):
        loss(model, data, first).backward()
        guard.gradients.independent(loss(model, data, second), samples=2)

    return act


def test_the_mean_of_siu_is_the_path_integral_of_the_full_gradient(net, data):
    full = oracle.gradients(loss(net, data, EVERY), net)

    def full_integral(first):
        model = copy.deepcopy(net)
        optimizer = torch.optim.Adam(model.parameters(), lr=0.1)
        loss(model, data, first).backward()
        before = oracle.snapshot(model)
        optimizer.step()
        return {name: -full[name] * (after - before[name]) for name, after in oracle.snapshot(model).items()}

    expected = mean(full_integral(first) for first in PAIRS)
    found = mean(
        raw_after_one_step(net, anchorhold.SIU(), with_second_batch(data, first, second))
        for first in PAIRS
        for second in PAIRS
    )
    biased = mean(raw_after_one_step(net, anchorhold.SI(), with_second_batch(data, b, b)) for b in PAIRS)
    for name, value in expected.items():
        torch.testing.assert_close(found[name], value, rtol=1e-9, atol=1e-12)
        assert float((biased[name] - value).norm()) > 0.1 * float(value.norm())


def test_si_is_siu_plus_sib(net, data):
    act = with_second_batch(data, (0, 1), (2, 3))
    si, siu, sib = (raw_after_one_step(net, anchorhold.measures.measure(kind), act) for kind in ("SI", "SIU", "SIB"))
    for name, value in si.items():
        torch.testing.assert_close(siu[name] + sib[name], value)


def empirical_fisher(net, data):
    per_sample = [oracle.gradients(loss(net, data, [i]), net) for i in EVERY]
    return mean({name: g**2 for name, g in gradients.items()} for gradients in per_sample)


@pytest.mark.parametrize("source", ["second batch", "halves"])
def test_unbiased_sos_estimates_the_empirical_fisher(net, data, source):
    measure = anchorhold.SOS(alpha="unbiased", beta2=0.0, normalise=False)

    def halves(first, second):
        def act(model, guard):
            guard.gradients.halves(loss(model, data, first), loss(model, data, second), samples=2)

        return act

    make = halves if source == "halves" else lambda first, second: with_second_batch(data, first, second)
    found = mean(raw_after_one_step(net, measure, make(a, b)) for a in PAIRS for b in PAIRS)
    scale = (1 - anchorhold.measures.unbiased_alpha(2)) ** 2
    plain = mean(
        raw_after_one_step(net, anchorhold.SOS(beta2=0.0, normalise=False), with_second_batch(data, b, b))
        for b in PAIRS
    )
    for name, value in empirical_fisher(net, data).items():
        torch.testing.assert_close(found[name] / scale, value, rtol=1e-9, atol=1e-14)
        ratio = plain[name] / value  # without α the estimate is not even proportional to it
        assert float(ratio.max() / ratio.min()) > 1.2


def test_halves_leave_the_whole_batch_in_grad(net, data):
    model = copy.deepcopy(net)
    guard = anchorhold.Guard(model, anchorhold.SOS(alpha=1.0))
    guard.attach(torch.optim.SGD(model.parameters(), lr=0.1))
    guard.gradients.halves(loss(model, data, [0, 1]), loss(model, data, [2, 3]))
    expected = oracle.gradients(loss(net, data, range(4)), net)
    for name, parameter in model.named_parameters():
        torch.testing.assert_close(parameter.grad, expected[name])


def test_halves_train_a_head_of_its_own_too():
    torch.manual_seed(0)
    body, head, x = nn.Linear(3, 4), nn.Linear(4, 1), torch.randn(8, 3)
    guard = anchorhold.Guard(body, anchorhold.SOS(alpha=1.0))
    optimizer = torch.optim.SGD([*body.parameters(), *head.parameters()], lr=0.1)
    guard.attach(optimizer)
    guard.gradients.halves(head(body(x[:4])).mean(), head(body(x[4:])).mean())
    trained = [*body.parameters(), *head.parameters()]
    for parameter, gradient in zip(trained, torch.autograd.grad(head(body(x)).mean(), trained), strict=True):
        torch.testing.assert_close(parameter.grad, gradient)


@pytest.mark.parametrize("way", ["observe_independent", "backward_halves"])
def test_what_one_of_the_two_gradients_does_not_reach_has_none_there(way):
    torch.manual_seed(0)
    heads, x = nn.ModuleList([nn.Linear(3, 1).double(), nn.Linear(3, 1).double()]), torch.randn(8, 3).double()
    optimizer = torch.optim.SGD(heads.parameters(), lr=0.1)
    guard = anchorhold.Guard(heads, anchorhold.SOS(alpha=0.5, beta2=0.0, normalise=False))
    guard.attach(optimizer)
    first, second = (head(x).square().mean() for head in heads)
    g = [torch.autograd.grad(half, heads[i].weight, retain_graph=True)[0] for i, half in enumerate((first, second))]
    if way == "backward_halves":
        guard.gradients.halves(first, second)
    else:
        first.backward()
        guard.gradients.independent(second)
    optimizer.step()
    found = guard.gradients.path.running["SOS"]["second_moment"]
    torch.testing.assert_close(found["0.weight"], g[0].square())
    torch.testing.assert_close(found["1.weight"], (0.5 * g[1]).square())


def test_halves_of_16_bit_weights_are_added_up_in_full():
    torch.manual_seed(0)
    model, x = nn.Linear(3, 1).bfloat16(), torch.randn(64, 3).bfloat16()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    guard = anchorhold.Guard(model, anchorhold.SOS(alpha=1.0, beta2=0.0, normalise=False))
    guard.attach(optimizer)
    sums = [torch.zeros(1, 3), torch.zeros(1, 3)]
    for i in range(8):
        halves = [model(part).square().mean() for part in x[8 * i : 8 * i + 8].chunk(2)]
        for k, half in enumerate(halves):
            sums[k] += torch.autograd.grad(half, model.weight, retain_graph=True)[0].float()
        guard.gradients.halves(*halves, accumulate=i > 0)
    optimizer.step()
    torch.testing.assert_close(
        guard.gradients.path.running["SOS"]["second_moment"]["weight"], (sums[0] - sums[1]).square(), rtol=1e-6, atol=0
    )


@pytest.mark.parametrize("measure", [anchorhold.SIU(), anchorhold.SIB()])
def test_halves_are_refused_where_the_step_is_made_of_both(net, data, measure):
    guard = anchorhold.Guard(net, measure)
    guard.attach(torch.optim.SGD(net.parameters(), lr=0.1))
    with pytest.raises(anchorhold.errors.OrderError, match="took no part in the step"):
        guard.gradients.halves(loss(net, data, [0]), loss(net, data, [1]))


def test_halves_of_one_forward_pass_are_those_of_two(net, data):
    def at_once(model, guard):
        outputs = model(data[0])
        losses = [nn.functional.cross_entropy(outputs[half], data[1][half]) for half in (slice(0, 2), slice(2, 4))]
        guard.gradients.halves(*losses, samples=2)

    def apart(model, guard):
        guard.gradients.halves(loss(model, data, [0, 1]), loss(model, data, [2, 3]), samples=2)

    once, twice = (raw_after_one_step(net, anchorhold.SOS(alpha="unbiased"), act) for act in (at_once, apart))
    for name, value in twice.items():
        torch.testing.assert_close(once[name], value)
