"""Asymmetric SI from its formulas (Park et al. 2019), with the penalty in the loss, in float64."""

import itertools
from functools import partial

import pytest
import torch
from torch import nn

import anchorhold
from anchorhold.errors import ConfigurationError
from anchorhold.measures.asymmetric import asymmetric_loss
from tests import helpers
from tests.path_oracle import Step, gradients, path_integral, snapshot

X = torch.linspace(-1, 1, 60, dtype=torch.float64).reshape(20, 3)
Y = torch.arange(20) % 2
STEPS, TASKS, RATE = 5, 3, 0.1
network = partial(helpers.network, 3, 4, 2)


def loss_of(model, task, step):
    return nn.functional.cross_entropy(model((-1) ** task * (1 + task) * X[step::STEPS]), Y[step::STEPS])


def old_loss(omega, side, d, a, epsilon):
    """Return the approximated loss of old tasks, weight by weight, as the paper writes it down."""
    seen = torch.sign(d) * side >= 0
    return torch.where(seen, omega * d**2, (a * omega + epsilon) * d**2)


def moved_between(model, task):
    """Let weights be elsewhere before a task than where the last one ended, as re-initialised ones are."""
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.05 * task)


def by_hand(c, a, epsilon, c_prime, a_prime, xi, *, reinitialised=False):
    """Train task after task with the penalty in the loss; return the model and Ω after each task."""
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=RATE, momentum=0.5)
    omega, side, anchor, totals = {}, {}, {}, []
    for task in range(TASKS):
        if reinitialised and task:
            moved_between(model, task)
        steps = []
        for step in range(STEPS):
            before = snapshot(model)
            loss = loss_of(model, task, step)
            gradient = gradients(loss, model)
            penalty = 0.0
            for name, p in model.named_parameters():
                if name in anchor:
                    penalty = penalty + c * old_loss(omega[name], side[name], p - anchor[name], a, epsilon).sum()
            optimizer.zero_grad()
            (loss + penalty).backward()
            optimizer.step()
            steps.append(Step(before, snapshot(model), gradient, gradient))
        for name, theta in snapshot(model).items():
            path, start = path_integral(steps, name, "SI"), steps[0].before[name]
            if name in anchor:
                first, last = (
                    old_loss(omega[name], side[name], at - anchor[name], a_prime, 0.0) for at in (start, theta)
                )
                path = path + c_prime * (first - last)
            new = path / ((theta - start) ** 2 + xi)
            omega[name] = torch.maximum(omega.get(name, torch.zeros_like(new)), new)
            side[name] = torch.sign(start - theta)
        anchor = snapshot(model)
        totals.append(dict(omega))
    return model, totals


@pytest.mark.parametrize("reinitialised", [False, True])
@pytest.mark.parametrize(("c_prime", "a_prime"), [(1.0, 1.0), (0.4, 2.5)])
def test_training_and_measuring_are_those_of_the_formulas(c_prime, a_prime, reinitialised, tmp_path):
    c, a, epsilon, xi = 3.0, 1.8, 0.01, 0.1
    expected, totals = by_hand(c, a, epsilon, c_prime, a_prime, xi, reinitialised=reinitialised)
    model = network()
    measure = anchorhold.measures.AsymmetricSI(xi, c_prime, a_prime)

    def made():
        holds = [anchorhold.holds.Asymmetric(a, epsilon)]
        return anchorhold.Guard(model, measure, strength=c, holds=holds, from_scratch=True)

    guard = made()
    optimizer = torch.optim.SGD(model.parameters(), lr=RATE, momentum=0.5)
    guard.attach(optimizer)
    for task, total in enumerate(totals):
        if reinitialised and task:
            moved_between(model, task)
        for step in range(STEPS):
            if (task, step) == (1, 2):  # in the middle of a task, with a lasting state and a side from before it
                guard.save(tmp_path / "state")
                guard.detach()
                guard = made()
                guard.load(tmp_path / "state")
                guard.attach(optimizer)
            optimizer.zero_grad()
            loss_of(model, task, step).backward()
            optimizer.step()
        guard.consolidate()
        for name, value in total.items():
            torch.testing.assert_close(guard.importance[name], value, rtol=1e-10, atol=1e-12)
    for name, value in snapshot(expected).items():
        torch.testing.assert_close(model.state_dict()[name], value, rtol=1e-10, atol=1e-12)
    assert any((later[n] > first[n]).any() for first, later in itertools.pairwise(totals) for n in first)


def test_the_first_task_is_that_of_si():
    found = {}
    for measure in ("ALASSO", "SI"):
        model = network()
        guard = anchorhold.Guard(model, measure, strength=1.0, from_scratch=True)
        optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
        guard.attach(optimizer)
        for step in range(STEPS):
            optimizer.zero_grad()
            loss_of(model, 0, step).backward()
            optimizer.step()
        guard.consolidate()
        found[measure] = guard.importance
    for name, value in found["SI"].items():
        torch.testing.assert_close(found["ALASSO"][name], value, rtol=1e-10, atol=0)


def test_the_penalty_is_the_loss_whose_gradient_is_added():
    model, c, a, epsilon = network(), 2.0, 4.0, 0.1
    guard = anchorhold.Guard(
        model, "SI", strength=c, holds=[anchorhold.holds.Asymmetric(a, epsilon)], from_scratch=True
    )
    optimizer = torch.optim.SGD(model.parameters(), lr=RATE)
    guard.attach(optimizer)
    start = snapshot(model)
    loss_of(model, 0, 0).backward()
    optimizer.step()
    guard.consolidate()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.3 * torch.randn(parameter.shape, dtype=torch.float64))
    expected, sides = 0.0, set()
    for name, p in snapshot(model).items():
        d, side = p - guard.anchor[name], torch.sign(start[name] - guard.anchor[name])
        sides |= set(torch.sign(d * side).unique().tolist())
        expected = expected + c * old_loss(guard.importance[name], side, d, a, epsilon).sum()
    assert {-1.0, 1.0} <= sides
    guard.attach(optimizer, hold=False)  # while the penalty is looked at by itself
    penalty = guard.penalty()
    torch.testing.assert_close(penalty.detach(), expected)
    by_autograd = gradients(penalty, model)
    guard.attach(optimizer, hold=True)
    before = snapshot(model)
    optimizer.zero_grad()
    (0.0 * loss_of(model, 0, 0)).backward()
    optimizer.step()
    for name, p in snapshot(model).items():
        torch.testing.assert_close(p, before[name] - RATE * by_autograd[name])


def test_a_weight_that_does_not_move_keeps_its_importance_and_its_side():
    model = network()
    guard = anchorhold.Guard(model, "ALASSO", strength=1.0, holds=["asymmetric"], from_scratch=True)
    optimizer = torch.optim.SGD(model.parameters(), lr=RATE)
    guard.attach(optimizer)
    for task in range(2):
        optimizer.zero_grad()
        loss_of(model, task, 0).backward()
        if task:
            model[0].weight.grad.zero_()
            kept, side = guard.importance["0.weight"].clone(), guard.options.holds[0].side["0.weight"].clone()
        optimizer.step()
        guard.consolidate()
    assert kept.max() > 0 and side.any()
    assert torch.equal(guard.importance["0.weight"], kept)
    assert torch.equal(guard.options.holds[0].side["0.weight"], side)


def test_equal_sides_are_the_quadratic_hold():
    omega, d, side = torch.rand(8), torch.randn(8), torch.randn(8)
    assert torch.equal(asymmetric_loss(omega, d, side, 1.0), omega * d.square())


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: anchorhold.measures.AsymmetricSI(damping=0.0), "damping=0.0"),
        (
            lambda: anchorhold.measures.AsymmetricSI(measuring_strength=-1),
            "measuring_strength=-1: expected a number not below 0",
        ),
        (
            lambda: anchorhold.measures.AsymmetricSI(measuring_factor=0.5),
            "measuring_factor=0.5: expected a number not below 1",
        ),
        (lambda: anchorhold.holds.Asymmetric(factor=0.9), "factor=0.9: expected a number not below 1"),
        (lambda: anchorhold.holds.Asymmetric(epsilon=-1.0), r"epsilon=-1.0: expected a number not below 0"),
    ],
)
def test_settings_that_make_no_sense_are_refused(make, message):
    with pytest.raises(ConfigurationError, match=message):
        make()


def test_forms_without_sides_are_refused():
    with pytest.raises(ConfigurationError, match="'asymmetric' with the form 'rotated'"):
        anchorhold.Guard(network(), "EWC", strength=1.0, form="rotated", holds=["asymmetric"])
