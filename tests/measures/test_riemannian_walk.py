"""RWalk from its formulas (Chaudhry et al. 2018), in float64."""

from functools import partial

import pytest
import torch
from torch import nn

import anchorhold
from anchorhold.errors import ConfigurationError, OrderError
from anchorhold.guard.stepping import bundles
from tests import helpers
from tests.path_oracle import gradients, snapshot

X = torch.linspace(-1, 1, 60, dtype=torch.float64).reshape(20, 3).sin()
Y = torch.arange(20) % 2
STEPS, TASKS, RATE = 7, 3, 0.2
EVERY, ALPHA, EPSILON, C = 3, 0.7, 1e-3, 2.0
network = partial(helpers.network, 3, 4, 2)


def batch(task, step):
    return (1 - 2 * task) * X[step % 4 :: 4], Y[step % 4 :: 4]


def loss_of(model, task, step):
    x, y = batch(task, step)
    return nn.functional.cross_entropy(model(x), y)


def squares_by_hand(model, task, step):
    """Return the mean of the squared gradients of a batch's samples, one at a time."""
    x, y = batch(task, step)
    found = [gradients(nn.functional.cross_entropy(model(x[i : i + 1]), y[i : i + 1]), model) for i in range(len(x))]
    return {name: torch.stack([g[name] ** 2 for g in found]).mean(0) for name in found[0]}


def by_hand(fisher_of, seen_at):
    """Train with the penalty in the loss; return the model and ω after each task."""
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=RATE)
    names = [name for name, _ in model.named_parameters()]
    fisher, past, anchor, omega, totals = dict.fromkeys(names, 0.0), {}, {}, {}, []
    for task in range(TASKS):
        score, intervals = dict.fromkeys(names, 0.0), []
        for step in range(STEPS):
            if step % EVERY == 0:
                intervals.append((snapshot(model), dict.fromkeys(names, 0.0)))
            loss = loss_of(model, task, step)
            g = gradients(loss, model)
            if fisher_of == "batch" or seen_at(step):
                new = {n: g[n] ** 2 for n in names} if fisher_of == "batch" else squares_by_hand(model, task, step)
                fisher = {n: ALPHA * new[n] + (1 - ALPHA) * fisher[n] for n in names}
            penalty = sum(
                C * (omega[n] * (p - anchor[n]) ** 2).sum() for n, p in model.named_parameters() if n in anchor
            )
            before = snapshot(model)
            optimizer.zero_grad()
            (loss + penalty).backward()
            optimizer.step()
            after = snapshot(model)
            start, gained = intervals[-1]
            for n in names:
                gained[n] = gained[n] - g[n] * (after[n] - before[n])
            if (step + 1) % EVERY == 0 or step + 1 == STEPS:
                for n in names:
                    score[n] = score[n] + gained[n] / (0.5 * fisher[n] * (after[n] - start[n]) ** 2 + EPSILON)
        new = {n: score[n].clamp(min=0) for n in names}
        past = new if not past else {n: (past[n] + new[n]) / 2 for n in names}
        largest, highest = (max(float(v.max()) for v in values.values()) for values in (fisher, past))
        omega = {n: fisher[n] / largest + past[n] / highest for n in names}
        anchor = snapshot(model)
        totals.append(omega)
    return model, totals


@pytest.mark.parametrize("small", [bundles.SMALL, 0], ids=["rows", "alone"])
@pytest.mark.parametrize(
    ("fisher_of", "seen_at"),
    [("batch", None), ("samples", lambda step: True), ("samples", lambda step: step % EVERY == 0)],
    ids=["batch", "every step", "every interval"],
)
def test_importances_and_training_are_those_of_the_formulas(fisher_of, seen_at, small, monkeypatch, tmp_path):
    monkeypatch.setattr(bundles, "SMALL", small)
    expected, totals = by_hand(fisher_of, seen_at)
    model = network()
    measure = anchorhold.RWalk(EVERY, ALPHA, EPSILON, fisher_of)
    guard = anchorhold.Guard(
        model, measure, strength=C, from_scratch=True, options=anchorhold.GuardOptions(implicit=False)
    )
    optimizer = torch.optim.SGD(model.parameters(), lr=RATE)
    guard.attach(optimizer)
    for task, total in enumerate(totals):
        for step in range(STEPS):
            if (task, step) == (1, 2):  # within an interval
                guard.save(tmp_path / "state")
                guard.detach()
                guard = anchorhold.Guard(model, measure, strength=C, options=anchorhold.GuardOptions(implicit=False))
                guard.load(tmp_path / "state")
                guard.attach(optimizer)
            optimizer.zero_grad()
            if fisher_of == "samples" and seen_at(step):
                guard.gradients.samples([batch(task, step)])
            loss_of(model, task, step).backward()
            optimizer.step()
        guard.consolidate()
        for name, value in total.items():
            torch.testing.assert_close(guard.importance[name], value, rtol=1e-9, atol=1e-12)
    for name, value in snapshot(expected).items():
        torch.testing.assert_close(model.state_dict()[name], value, rtol=1e-9, atol=1e-12)
    assert max(float(value.max()) for value in totals[-1].values()) <= 2


def test_the_squares_are_those_of_single_samples_and_of_micro_batches():
    model = network()
    guard = anchorhold.Guard(model, "RWalk", strength=1.0, from_scratch=True)
    optimizer = torch.optim.SGD(model.parameters(), lr=RATE)
    guard.attach(optimizer)
    x, y = batch(0, 0)
    expected = squares_by_hand(model, 0, 0)
    model.train()
    for batches in ([(x, y)], [(x[:2], y[:2]), (x[2:], y[2:])]):
        guard.gradients.samples(batches)
        found = guard._attachment.watcher.measures.observed.squares
        for name, value in expected.items():
            torch.testing.assert_close(found[name], value, rtol=1e-10, atol=0)
    assert model.training and all(parameter.grad is None for parameter in model.parameters())


def test_a_step_without_its_samples_is_refused_at_once_and_nothing_is_recorded():
    model = network()
    guard = anchorhold.Guard(model, "RWalk", strength=1.0, from_scratch=True)
    optimizer = torch.optim.SGD(model.parameters(), lr=RATE)
    guard.attach(optimizer)
    before = snapshot(model)
    loss_of(model, 0, 0).backward()
    with pytest.raises(OrderError, match=r"gradients.samples\(\[batch\]\)"):
        optimizer.step()
    assert all(torch.equal(value, before[name]) for name, value in snapshot(model).items())
    assert guard.gradients.path.steps == 0
    guard.gradients.samples([batch(0, 0)])
    for _ in range(10):
        optimizer.step()
        optimizer.zero_grad()
        loss_of(model, 0, 0).backward()
    with pytest.raises(OrderError, match="got none"):  # the eleventh begins an interval
        optimizer.step()


def test_a_frozen_weight_keeps_its_score():
    model = network()
    guard = anchorhold.Guard(model, "RWalk-batch", strength=1.0, from_scratch=True)
    found = []
    for task in range(2):
        model[0].weight.requires_grad_(not task)
        optimizer = torch.optim.SGD([p for p in model.parameters() if p.requires_grad], lr=RATE)
        guard.attach(optimizer)
        for step in range(STEPS):
            optimizer.zero_grad()
            loss_of(model, task, step).backward()
            optimizer.step()
        guard.consolidate()
        found.append(guard.gradients.path.running["RWalk-batch"]["past"]["0.weight"].clone())
        guard.detach()
    assert found[0].max() > 0
    assert torch.equal(*found)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"every": 0}, "every=0"),
        ({"alpha": 0.0}, "alpha=0.0: expected a number above 0"),
        ({"epsilon": 0.0}, "epsilon=0.0"),
        ({"fisher": "true"}, "fisher='true': expected one of 'samples', 'batch'"),
    ],
)
def test_settings_that_make_no_sense_are_refused(settings, message):
    with pytest.raises(ConfigurationError, match=message):
        anchorhold.RWalk(**settings)
