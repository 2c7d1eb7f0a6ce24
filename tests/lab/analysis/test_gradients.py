"""Loss and gradient over all samples: as one at a time, and without a trace."""

import copy

import pytest
import torch

from anchorhold_lab.analysis.probes.full_gradient import full_gradient, full_loss, mean_gradient, squared_norm
from anchorhold_lab.experiments.store.nested_files import Flattened
from anchorhold_lab.networks import MultiHead
from tests.lab.analysis.helpers import gradient_of_each, loss_over_all, observed_learner
from tests.lab.training import helpers


@pytest.mark.parametrize("own_heads", [False, True])
def test_as_one_sample_at_a_time(own_heads):
    learner = observed_learner(own_heads=own_heads)
    each = gradient_of_each(copy.deepcopy(learner.model), learner, 1)
    found = full_gradient(learner, 1)
    assert list(found) == list(learner.guard.parameters)
    assert any(name.startswith("heads") for name in found) == (not own_heads)
    torch.testing.assert_close(torch.cat([g.flatten() for g in found.values()]), each.mean(0))
    assert full_loss(learner, 1) == pytest.approx(loss_over_all(copy.deepcopy(learner.model), learner, 1))
    assert squared_norm(found) == pytest.approx(float(each.mean(0).square().sum()))


def test_batches_of_unequal_size_count_by_their_samples():
    learner = observed_learner()
    scenario = helpers.make_scenario(1, True, torch.float64, train=1003)
    learner.scenario = scenario
    each = gradient_of_each(copy.deepcopy(learner.model), learner, 0)
    found = full_gradient(learner, 0)
    torch.testing.assert_close(torch.cat([g.flatten() for g in found.values()]), each.mean(0))
    assert full_loss(learner, 0) == pytest.approx(loss_over_all(copy.deepcopy(learner.model), learner, 0))


def test_single_precision_is_added_up_in_double():
    learner = helpers.make_learner()
    assert {gradient.dtype for gradient in full_gradient(learner, 0).values()} == {torch.float64}


@pytest.mark.parametrize("training", [True, False])
def test_no_trace_is_left(training):
    """With layers that drop, that keep statistics, and a gradient half-way through accumulation."""
    scenario = helpers.make_scenario(2)
    body = torch.nn.Sequential(torch.nn.Linear(6, 10), torch.nn.BatchNorm1d(10), torch.nn.Dropout(0.5))
    learner = helpers.make_learner(scenario=scenario, model=MultiHead(body, 10, 3, scenario.heads))
    learner.model.train(training)
    learner.model.body[0].weight.grad = torch.ones_like(learner.model.body[0].weight)
    before = Flattened.of(learner.state()).digest
    random = torch.random.get_rng_state()
    full_loss(learner, 0)
    full_gradient(learner, 0)
    mean_gradient(learner, 0, learner.samples(0).select(torch.arange(3)))
    assert all(module.training == training for module in learner.model.modules())
    assert torch.equal(torch.random.get_rng_state(), random)
    assert Flattened.of(learner.state()).digest == before
    assert bool((learner.model.body[0].weight.grad == 1).all())
    others = [p for p in learner.model.parameters() if p is not learner.model.body[0].weight]
    assert all(p.grad is None and p.requires_grad for p in others)
