"""The diagonal with damping: every weight is held a little, from the formula in float64."""

import pytest
import torch
from torch import nn

import anchorhold
from anchorhold.errors import ConfigurationError, StateError
from anchorhold.forms import Diagonal
from anchorhold_lab.training.fast.fast_runs import FastRuns
from anchorhold_lab.training.plain_run import PlainRun
from tests.guard.helpers import batch, consolidated, loss, net
from tests.lab.training.helpers import finish, make_learner, make_model, make_scenario

SHARE, STRENGTH = 0.05, 0.5


def damped(omega):
    mean = sum(value.sum() for value in omega.values()) / sum(value.numel() for value in omega.values())
    return {name: value + SHARE * mean for name, value in omega.items()}


def test_the_pull_is_that_of_importance_and_a_share_of_its_mean(tmp_path):
    model = net()
    guard = consolidated(model, strength=STRENGTH, form=Diagonal(damping=SHARE), implicit=False)
    plain = anchorhold.Guard(net(), anchorhold.Fisher(), strength=STRENGTH)
    plain.consolidate([batch(9)])
    omega = damped(plain.importance)
    for name, value in plain.importance.items():
        assert torch.equal(guard.importance[name], value)  # as measured
        torch.testing.assert_close(guard.held.importance[name], omega[name], rtol=1e-12, atol=0)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    guard.attach(optimizer)
    before = {name: p.detach().clone() for name, p in model.named_parameters()}
    loss(model, batch(1)).backward()
    expected = {
        name: before[name] - 0.1 * (p.grad + 2 * STRENGTH * omega[name] * (before[name] - plain.anchor[name]))
        for name, p in model.named_parameters()
    }
    optimizer.step()
    for name, p in model.named_parameters():
        torch.testing.assert_close(p.detach(), expected[name], rtol=1e-10, atol=1e-14)
    guard.save(tmp_path / "guard.safetensors")
    again = anchorhold.Guard(model, anchorhold.Fisher(), strength=STRENGTH, form=Diagonal(damping=SHARE))
    again.load(tmp_path / "guard.safetensors")
    torch.testing.assert_close(again.penalty(), guard.penalty(), rtol=0, atol=0)
    with pytest.raises(StateError, match=r"damping.*Make one with the same"):
        plain.load(tmp_path / "guard.safetensors")


def test_the_weights_of_a_dead_unit_are_held_with_it_and_free_without():
    def ends_up(form):
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2)).double()
        with torch.no_grad():
            model[0].bias[0] = -100.0  # no sample makes this unit active
        guard = anchorhold.Guard(model, anchorhold.Fisher(), strength=STRENGTH, form=form)
        guard.consolidate([(torch.randn(20, 3, dtype=torch.float64), torch.arange(20) % 2)])
        with torch.no_grad():
            model[0].bias[0] = 1.0  # as where weights are drawn anew
        optimizer = torch.optim.Adam(model.parameters(), lr=1.0)
        guard.attach(optimizer)
        for _ in range(150):
            optimizer.zero_grad()
            (0.0 * model(torch.ones(1, 3, dtype=torch.float64)).sum()).backward()
            optimizer.step()
        return model[0].bias[0].item()

    assert ends_up("diagonal") == 1.0
    assert ends_up(Diagonal(damping=0.01)) < -50


def test_runs_side_by_side_have_it_as_the_plain_loop_has():
    def learner(seed, form):
        scenario = make_scenario(dtype=torch.float64)
        model = make_model(scenario, dropout=False).double()
        measure = anchorhold.SOS(window=0.3)
        return make_learner(
            measure, seed=seed, watch=(), scenario=scenario, model=model, dropout=False, form=form, strength=50.0
        )

    form = Diagonal(damping=0.2)
    fast, plain = finish(FastRuns([learner(3, form), learner(4, form)])), finish(PlainRun(learner(4, form)))
    without = finish(PlainRun(learner(4, "diagonal")))
    theirs, ours, other = (run.model.state_dict() for run in (plain.learner, fast.learners[1], without.learner))
    for name, value in theirs.items():
        torch.testing.assert_close(ours[name], value, rtol=1e-8, atol=1e-12)
    assert any(not torch.allclose(other[name], value, rtol=1e-3) for name, value in theirs.items())


def test_the_setting_came_later_and_what_it_cannot_be_is_refused():
    assert Diagonal().settings() == {"name": "diagonal"}
    assert Diagonal(damping=0.01).settings() == {"name": "diagonal", "damping": 0.01}
    with pytest.raises(ConfigurationError, match=r"damping=-1: expected a number of at least 0"):
        Diagonal(damping=-1)


def test_a_tolerance_takes_it_over():
    for form, share in ((Diagonal(damping=SHARE), SHARE), (Diagonal(), 0.001)):
        assert anchorhold.Tolerance(0.05).damping_in(form) == share
    assert anchorhold.Tolerance(0.05, damping=0.3).damping_in(Diagonal(damping=SHARE)) == 0.3
