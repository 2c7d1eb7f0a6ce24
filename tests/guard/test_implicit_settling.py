"""Where the steps of an implicit hold lead to: the least of loss and penalty together, at any rate."""

import pytest
import torch
from torch import nn

import anchorhold

STEPS = 250


def regression():
    """A linear model and its data."""
    torch.manual_seed(0)
    model = nn.Linear(4, 3, dtype=torch.float64)
    return model, torch.randn(30, 4, dtype=torch.float64), torch.randn(30, 3, dtype=torch.float64)


OPTIMISERS = {
    "SGD": lambda p: torch.optim.SGD(p, lr=0.3),
    "weight decay": lambda p: torch.optim.SGD(p, lr=0.3, weight_decay=0.3),
    "momentum": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.7),
    "dampening": lambda p: torch.optim.SGD(p, lr=0.3, momentum=0.7, dampening=0.5),
    "Nesterov": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.7, nesterov=True),
    "Adam": lambda p: torch.optim.Adam(p, lr=0.1, betas=(0.5, 0.9)),
    "AdamW": lambda p: torch.optim.AdamW(p, lr=0.1, betas=(0.5, 0.9), weight_decay=0.0),
    "Adagrad": lambda p: torch.optim.Adagrad(p, lr=1.0),
}
PAIRS = [("diagonal", name) for name in OPTIMISERS] + [("dense", name) for name in list(OPTIMISERS)[:5]]


@pytest.mark.parametrize(("form", "name"), PAIRS)
def test_steps_settle_where_loss_and_penalty_are_least_together(form, name):
    """At rates that are far from small, since step and pull go equally far for a gradient."""
    model, x, y = regression()
    optimizer = OPTIMISERS[name](model.parameters())
    guard = anchorhold.Guard(model, "EWC", strength=3.0, form=form, options=anchorhold.GuardOptions(implicit=True))
    guard.consolidate([x[:5]])
    guard.attach(optimizer)
    for _ in range(STEPS):
        optimizer.zero_grad()
        (model(x) - y).square().mean().backward()
        optimizer.step()
    guard.detach()
    decay = optimizer.param_groups[0]["weight_decay"]
    task, penalty = (model(x) - y).square().mean(), guard.penalty()
    total = task + penalty + 0.5 * decay * sum(p.square().sum() for p in model.parameters())
    for gradient in torch.autograd.grad(total, list(model.parameters()), retain_graph=True):
        torch.testing.assert_close(gradient, torch.zeros_like(gradient), rtol=0, atol=1e-10)
    assert torch.autograd.grad(task, model.weight)[0].abs().max() > 0.01  # it is held, away from the task's own optimum


def test_a_scalar_rate_under_adam_would_lead_elsewhere():
    """That the root of v is part of it is what makes the point above that of Ω, and not of Ω√v."""
    model, x, y = regression()
    guard = anchorhold.Guard(model, "EWC", strength=3.0)
    guard.consolidate([x[:5]])
    optimizer = OPTIMISERS["Adam"](model.parameters())
    guard.attach(optimizer, hold=False)
    for _ in range(STEPS):
        optimizer.zero_grad()
        (model(x) - y).square().mean().backward()
        optimizer.step()
        with torch.no_grad():
            for name, p in model.named_parameters():
                p.copy_(guard.anchor[name] + (p - guard.anchor[name]) / (1 + 6 * 0.1 * guard.importance[name]))
    guard.detach()
    gradient = torch.autograd.grad((model(x) - y).square().mean() + guard.penalty(), model.weight)[0]
    assert gradient.abs().max() > 0.01
