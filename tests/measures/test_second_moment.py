"""SOS whose average is tied to the task's length, or leaves out its first steps, from the formulas in float64."""

import math
from functools import partial

import pytest
import torch
from torch import nn

import anchorhold
from anchorhold.errors import ConfigurationError
from anchorhold_lab.training.fast.fast_runs import FastRuns
from anchorhold_lab.training.plain_run import PlainRun
from tests import helpers
from tests.lab.training.helpers import finish, make_learner, make_model, make_scenario
from tests.path_oracle import gradients

STEPS = 23
X = torch.linspace(-1, 1, 60, dtype=torch.float64).reshape(20, 3).sin()
Y = torch.arange(20) % 2
network = partial(helpers.network, 3, 4, 2)


def loss_of(model, step):
    return nn.functional.cross_entropy(model(X[step % 4 :: 4]), Y[step % 4 :: 4])


def weights_of_steps(window, skip, beta2):
    """Return what each step counts for in v, as products of 1 − r, with no recurrence."""
    rates = []
    for step in range(STEPS):
        counted = step - skip
        usual = 1 - beta2 if window is None else 1 / (1 + window * counted)
        rates.append(0.0 if counted < 0 else usual)
    return [r * math.prod(1 - later for later in rates[t + 1 :]) for t, r in enumerate(rates)]


@pytest.mark.parametrize(
    ("settings", "window", "skip", "alpha"),
    [
        ({"window": 0.3}, 0.3, 0, 0),
        ({"skip": 9, "normalise": False}, None, 9, 0),
        ({"window": 0.2, "skip": 4}, 0.2, 4, 1),
    ],
)
def test_v_is_the_weighted_sum_of_all_steps(settings, window, skip, alpha):
    model, squares = network(), []
    measure = anchorhold.SOS(alpha=alpha, **settings)
    guard = anchorhold.Guard(model, measure, strength=1.0, from_scratch=True)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.3)
    guard.attach(optimizer)
    for step in range(STEPS):
        g, other = (gradients(loss_of(model, number), model) for number in (step, step + 1))
        squares.append({name: (g[name] - alpha * other[name]) ** 2 for name in g})
        optimizer.zero_grad()
        loss_of(model, step).backward()
        if alpha:
            guard.gradients.independent(loss_of(model, step + 1))
        optimizer.step()
    found = guard.consolidate()["SOS"].importance
    weights = weights_of_steps(window, skip, 0.999)
    for name, value in found.items():
        v = sum(weight * square[name] for weight, square in zip(weights, squares, strict=True))
        torch.testing.assert_close(value, v.sqrt(), rtol=1e-10, atol=1e-14)
    if window is not None:  # it is a mean, which reaches over a share of the steps, however many there are
        assert sum(weights) == pytest.approx(1)
        ages = sum(weight * (STEPS - 1 - step) for step, weight in enumerate(weights))
        assert ages == pytest.approx((STEPS - 1 - skip) * window / (1 + window), rel=1e-9)


@pytest.mark.parametrize("measure", [anchorhold.SOS(window=0.3, alpha=1.0), anchorhold.SOS(skip=2, beta2=0.9)])
def test_runs_side_by_side_have_it_as_the_plain_loop_has(measure):
    def learner(seed):
        scenario = make_scenario(dtype=torch.float64)
        model = make_model(scenario, dropout=False).double()
        return make_learner(measure, seed=seed, watch=(), scenario=scenario, model=model, dropout=False)

    fast, plain = finish(FastRuns([learner(3), learner(4)])), finish(PlainRun(learner(4)))
    theirs, ours = (run.guard.importance for run in (plain.learner, fast.learners[1]))
    for name, value in theirs.items():
        assert value.max() > 0
        torch.testing.assert_close(ours[name], value, rtol=1e-9, atol=1e-14)


def test_what_would_measure_nothing_is_refused_before_the_first_step():
    with pytest.raises(ConfigurationError, match=r"skip=6.*6 steps, all of which it leaves out"):
        make_learner(anchorhold.SOS(skip=6), watch=())
    make_learner(anchorhold.SOS(skip=5), watch=())
    with pytest.raises(ConfigurationError, match=r"beta2=0.9 and window=0.1: expected one of both"):
        anchorhold.SOS(beta2=0.9, window=0.1)
    with pytest.raises(ConfigurationError, match=r"normalise=False and window=0.1: expected normalise=True"):
        anchorhold.SOS(normalise=False, window=0.1)
    with pytest.raises(ConfigurationError, match=r"window=0: expected a share"):
        anchorhold.SOS(window=0)


def test_settings_that_came_later_leave_names_of_runs_as_they_were():
    assert anchorhold.SOS().settings() == {
        "kind": "SOS",
        "beta2": 0.999,
        "normalise": True,
        "alpha": 0.0,
        "batch_size": None,
    }
    assert anchorhold.SOS(window=0.1).settings()["window"] == 0.1
