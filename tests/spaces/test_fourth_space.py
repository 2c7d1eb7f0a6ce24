"""A space of one's own is one class: the guard asks for coordinates and brings gradients back, whatever they are."""

import pytest
import torch
from torch import nn

import anchorhold
from anchorhold import spaces
from anchorhold.forms import Diagonal, Kronecker
from anchorhold.spaces import Space


class Tripled(Space):
    """θ̃ = 3θ, so that the penalty is 9 times that of θ by the same importance."""

    def __init__(self, model, parameters, folded):
        super().__init__(model, parameters, folded)
        self.mapped = frozenset(parameters)

    def coordinates(self, parameters):
        return {name: 3 * parameter for name, parameter in parameters.items()}

    def to_parameters(self, gradient):
        return {name: 3 * g for name, g in gradient.items()}


def consolidated(form, anchor="last"):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 3)).double()
    guard = anchorhold.Guard(model, "EWC", strength=0.7, form=form, anchor=anchor)
    inputs = torch.randn(12, 4, dtype=torch.float64)
    for task in range(2):
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.add_(0.1 * (task + 1))
        guard.consolidate([(inputs, torch.arange(12) % 3)])
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter))
    return guard, model


@pytest.mark.parametrize("anchor", ["last", "mean"])
@pytest.mark.parametrize("form", [Diagonal(), Kronecker(damping=0.0)], ids=["diagonal", "kronecker"])
def test_penalty_and_steps_are_those_of_its_coordinates(monkeypatch, form, anchor):
    plain, model = consolidated(form, anchor)
    expected = plain.penalty()
    gradients = torch.autograd.grad(expected, list(model.parameters()))

    monkeypatch.setitem(spaces.SPACES, "weights", Tripled)
    guard, other = consolidated(form, anchor)
    assert guard.penalty().item() == pytest.approx(9 * expected.item(), rel=1e-12)

    optimizer = torch.optim.Adam(other.parameters(), lr=1e-3)  # which holds in the gradient
    guard.attach(optimizer)
    sum(parameter.sum() for parameter in other.parameters()).mul(0.0).backward()
    optimizer.step()
    for parameter, gradient in zip(other.parameters(), gradients, strict=True):
        torch.testing.assert_close(parameter.grad, 9 * gradient, rtol=1e-10, atol=1e-12)
