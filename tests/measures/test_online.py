"""Online EWC from its formula (Schwarz et al. 2018), in float64."""

from functools import partial

import pytest
import torch

import anchorhold
from anchorhold.errors import ConfigurationError
from tests import helpers, oracles

Y = torch.arange(12) % 3
network = partial(helpers.network, 4, 5, 3)


def inputs(task):
    return (1 + task) * torch.randn(12, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(task))


@pytest.mark.parametrize("normalise", [True, False])
@pytest.mark.parametrize("guards_own", [1.0, 0.5])
def test_totals_are_those_of_the_formula(normalise, guards_own, tmp_path):
    model, gamma = network(), 0.7
    measure = anchorhold.OnlineEWC(decay=gamma, normalise=normalise)
    guard = anchorhold.Guard(model, measure, strength=2.0, decay=guards_own)
    expected = {}
    for task in range(3):
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.mul_(1.3)
        x = inputs(task)
        fisher = oracles.importance(model, oracles.one_by_one(x, Y), oracles.every_label, torch.square)
        mean = torch.cat([value.flatten() for value in fisher.values()]).mean() if normalise else 1.0
        old = {name: gamma * guards_own * value for name, value in expected.items()}
        expected = {name: old.get(name, 0.0) + value / mean for name, value in fisher.items()}
        guard.consolidate([x])
        guard.save(tmp_path / "state")
        guard = anchorhold.Guard(model, measure, strength=2.0, decay=guards_own)
        guard.load(tmp_path / "state")
    for name, value in expected.items():
        torch.testing.assert_close(guard.importance[name], value, rtol=1e-10, atol=0)
    # What others have as a further γ in the loss is a strength of γc, and nothing else.
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.1)
    penalty = sum((gamma * value * 0.1**2).sum() for value in expected.values())
    guard.strength = gamma
    torch.testing.assert_close(guard.penalty().detach(), torch.as_tensor(penalty))


def test_a_mean_of_solutions_is_weighted_by_the_faded_total():
    model, gamma = network(), 0.5
    guard = anchorhold.Guard(model, anchorhold.OnlineEWC(decay=gamma), strength=1.0, anchor="mean")
    found = []
    for task in range(2):
        with torch.no_grad():
            model[2].bias.add_(1.0)
        omega = guard.consolidate([inputs(task)])["online-EWC"].importance["2.bias"].clone()
        found.append((omega, model[2].bias.detach().clone()))
    (first, before), (second, after) = found
    mean = (gamma * first * before + second * after) / (gamma * first + second)
    torch.testing.assert_close(guard.anchor["2.bias"], mean)


def test_tasks_count_alike_however_large_their_fishers_are():
    model = network()
    guard = anchorhold.Guard(model, "online-EWC", strength=1.0)
    for task in range(2):
        found = guard.consolidate([10.0**task * inputs(task)])["online-EWC"].importance
        assert torch.cat([value.flatten() for value in found.values()]).mean().item() == pytest.approx(1)


def test_what_is_scaled_as_a_whole_has_no_place_in_matrices():
    for form in ("rotated", "kronecker", "lowrank"):
        with pytest.raises(ConfigurationError, match="online-EWC has no importance in the form"):
            anchorhold.Guard(network(), "online-EWC", strength=1.0, form=form)


def test_a_decay_that_is_none_is_refused():
    with pytest.raises(ConfigurationError, match=r"decay=1\.5: expected a number from 0 to 1"):
        anchorhold.OnlineEWC(decay=1.5)
