"""Models that grow, freeze, thaw and move while they are protected."""

import pytest
import torch
from torch import nn

import holdfast
from tests.consolidation.helpers import batch, loss, net, train, weights


def test_a_head_that_is_added_later_is_taken_in():
    model = nn.Sequential(nn.Linear(4, 5), nn.Tanh()).double()
    model.add_module("head_a", nn.Linear(5, 3).double())
    guard = holdfast.Consolidator(model, holdfast.SI(), strength=1.0)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    guard.attach(optimizer)
    train(model, optimizer)
    guard.consolidate()
    model.add_module("head_b", nn.Linear(3, 3).double())
    optimizer.add_param_group({"params": model.head_b.parameters()})
    assert "head_b.weight" not in guard.parameters
    train(model, optimizer)
    assert "head_b.weight" in guard.parameters
    assert "head_b.weight" not in guard.anchor
    found = guard.consolidate()["SI"]
    assert float(found.importance["head_b.weight"].max()) > 0
    assert torch.equal(guard.anchor["head_b.weight"], model.head_b.weight)


def test_a_parameter_that_is_frozen_stays_held_and_is_still_measured_from_data():
    model = net()
    guard = holdfast.Consolidator(model, holdfast.Fisher(), strength=1.0, watch=["SOS"])
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    guard.attach(optimizer)
    train(model, optimizer)
    guard.consolidate([batch(0)])
    first = {name: value.clone() for name, value in guard.importance.items()}
    model[0].requires_grad_(False)
    before = weights(model)
    train(model, optimizer)
    assert torch.equal(model[0].weight, before["0.weight"])
    found = guard.consolidate([batch(0)])
    assert bool((guard.importance["0.weight"] > first["0.weight"]).all())
    assert float(found["SOS"].importance["0.weight"].max()) == 0
    assert not model[0].weight.requires_grad
    model[0].requires_grad_(True)
    with torch.no_grad():
        model[0].weight.add_(1.0)
    optimizer.zero_grad()
    (0 * loss(model, batch(0))).backward()
    optimizer.step()
    moved = before["0.weight"] + 1.0 - model[0].weight
    torch.testing.assert_close(moved, 0.1 * 2 * guard.importance["0.weight"])


def test_a_parameter_that_is_unfrozen_is_taken_in():
    model = net()
    model[0].requires_grad_(False)
    guard = holdfast.Consolidator(model, holdfast.SOS())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    guard.attach(optimizer)
    train(model, optimizer)
    assert set(guard.consolidate()["SOS"].importance) == {"2.weight", "2.bias"}
    model[0].requires_grad_(True)
    train(model, optimizer)
    assert set(guard.consolidate()["SOS"].importance) == {"0.weight", "0.bias", "2.weight", "2.bias"}


def test_a_parameter_that_changed_its_shape_is_refused_until_forgotten():
    model = net()
    guard = holdfast.Consolidator(model, holdfast.Fisher())
    guard.consolidate([batch(0)])
    kept = {name: value.clone() for name, value in guard.importance.items()}
    model[2] = nn.Linear(5, 7).double()
    with pytest.raises(holdfast.ProtectError, match=r"'2.weight' was consolidated with shape \(3, 5\)"):
        guard.consolidate([batch(0)])
    assert all(torch.equal(guard.importance[name], value) for name, value in kept.items())
    guard.forget("2.weight", "2.bias")
    guard.consolidate([batch(0)])
    assert guard.importance["2.weight"].shape == (7, 5)
    with pytest.raises(holdfast.ProtectError, match="not a protected parameter"):
        guard.forget("nowhere")


def test_tied_weights_are_measured_and_held_as_one():
    class Tied(nn.Module):
        def __init__(self):
            super().__init__()
            self.first = nn.Linear(4, 4, bias=False)
            self.second = nn.Linear(4, 4, bias=False)
            self.second.weight = self.first.weight

        def forward(self, x):
            return self.second(self.first(x).tanh())

    torch.manual_seed(0)
    model = Tied().double()
    guard = holdfast.Consolidator(model, holdfast.SI(), strength=0.5, watch=["EWC"])
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    guard.attach(optimizer)
    gradient = torch.autograd.grad(loss(model, batch(0)), model.first.weight)[0]
    before = model.first.weight.detach().clone()
    loss(model, batch(0)).backward()
    optimizer.step()
    found = guard.consolidate([batch(0)])
    assert set(found["SI"].raw) == {"first.weight"}
    torch.testing.assert_close(found["SI"].raw["first.weight"], -gradient * (model.first.weight - before))
    with torch.no_grad():
        model.first.weight.add_(1.0)
    torch.testing.assert_close(guard.penalty().detach(), 0.5 * guard.importance["first.weight"].sum())


def test_a_module_that_is_replaced_by_one_of_the_same_shape_is_followed():
    model = net()
    guard = holdfast.Consolidator(model, holdfast.L2(), strength=0.5)
    guard.consolidate()
    model[0] = nn.Linear(4, 5).double()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    guard.attach(optimizer)
    before = model[0].weight.detach().clone()
    (0 * loss(model, batch(0))).backward()
    optimizer.step()
    torch.testing.assert_close(model[0].weight, before - 0.1 * (before - guard.anchor["0.weight"]))


def test_a_module_that_is_replaced_by_one_of_another_shape_within_its_first_task_starts_anew():
    model = net()
    guard = holdfast.Consolidator(model, holdfast.SI(), watch=["SOS"])
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    guard.attach(optimizer)
    train(model, optimizer)
    model[2] = nn.Linear(5, 7).double()
    fresh = model[2].weight.detach().clone()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    guard.attach(optimizer)
    train(model, optimizer)
    assert torch.equal(guard.path.start["2.weight"], fresh)
    assert guard.path.running["SI"]["2.weight"].shape == (7, 5)
    assert guard.path.steps == 6
    guard.consolidate()
    assert guard.importance["2.weight"].shape == (7, 5)
