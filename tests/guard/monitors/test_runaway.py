"""Weights that a pull throws ever farther past their anchor are told of, with optimizers that nothing is known of."""

import re
import warnings

import pytest
import torch
from torch import nn

import anchorhold
from anchorhold.errors import NotFiniteError
from tests.guard.helpers import batch, loss, net, train
from tests.helpers import grouped


class Plain(torch.optim.Optimizer):
    """Gradient descent of one's own."""

    def __init__(self, parameters, lr):
        super().__init__(parameters, {"lr": lr})

    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
            for parameter in group["params"]:
                parameter.sub_(group["lr"] * parameter.grad)


def trained(kind, strength, steps, lr=0.1, **settings):
    """A guard whose model has learned something else, in so many steps."""
    model = net()
    guard = anchorhold.Guard(model, anchorhold.Fisher(), strength=strength, **grouped(**settings))
    guard.consolidate([batch(9)])
    optimizer = kind(model.parameters(), lr=lr)
    guard.attach(optimizer)
    train(model, optimizer, steps)
    return guard


def times(guard):
    """How far weights are from their anchor, in their own size there."""
    apart = sum((p.detach() - guard.anchor[n]).abs().sum() for n, p in guard.parameters.items())
    return float(apart / sum(anchor.abs().sum() for anchor in guard.anchor.values()))


@pytest.mark.parametrize("kind", [Plain, torch.optim.ASGD])
@pytest.mark.parametrize("form", ["diagonal", "rotated"])
def test_weights_that_run_away_are_told_of_once_with_how_far(kind, form):
    # The look is before a step, at the weights that eight steps have left.
    with pytest.warns(
        anchorhold.AnchorholdWarning, match=f"After 8 steps .* with {kind.__name__}, strength=3000"
    ) as told:
        trained(kind, 3e3, 20, form=form)
    assert len(told) == 1
    far = float(re.search(r"weights are (\S+) times", str(told[0].message))[1])
    assert far == pytest.approx(times(trained(kind, 3e3, 8, form=form)), rel=0.01)


@pytest.mark.parametrize("kind", [Plain, torch.optim.ASGD, torch.optim.Adam])
def test_training_that_goes_well_is_not(kind):
    guard = trained(kind, 1.0, 40)  # a warning would be an error here
    assert 0 < times(guard) < 10


def test_weights_that_go_as_far_without_a_pull_are_not():
    model = net()
    guard = anchorhold.Guard(model, "fine-tune", strength=1.0)
    guard.consolidate()
    guard.attach(optimizer := Plain(model.parameters(), lr=1.0))
    for _ in range(20):
        for parameter in model.parameters():
            parameter.grad = torch.full_like(parameter, 100.0)
        optimizer.step()
    assert times(guard) > 1000


class Scaled(nn.Module):
    """A layer beside a small scale."""

    def __init__(self, scale):
        super().__init__()
        self.layer = nn.Linear(4, 3)
        self.scale = nn.Parameter(torch.full((4,), scale))

    def forward(self, x):
        return self.layer(x.float() * self.scale)


@pytest.mark.parametrize("kind", [Plain, torch.optim.Adam])
def test_nor_are_weights_that_were_small_where_they_are_held(kind):
    """A scale that has hardly been trained, at 1e-6, ends a thousand times its size away where nothing overshoots."""
    model = Scaled(1e-6)
    guard = anchorhold.Guard(model, anchorhold.Fisher(), strength=1.0, protect="scale")
    guard.consolidate([batch(9)])
    guard.attach(optimizer := kind(model.parameters(), lr=0.1))
    for seed in range(40):
        optimizer.zero_grad()
        loss(model, batch(seed)).backward()
        optimizer.step()
    assert times(guard) > 1000


def test_two_optimizers_are_looked_at_each_by_itself():
    model = net()
    guard = anchorhold.Guard(model, anchorhold.Fisher(), strength=3e3)
    guard.consolidate([batch(9)])
    first, *others = model.parameters()
    optimizers = [Plain([first], lr=0.1), Plain(others, lr=0.1)]
    guard.attach(*optimizers)

    def train():
        for seed in range(9):
            model.zero_grad()
            loss(model, batch(seed)).backward()
            for optimizer in optimizers:
                optimizer.step()

    with pytest.warns(anchorhold.AnchorholdWarning, match="After 8 steps"):
        train()


def test_a_gradient_that_is_no_number_since_weights_have_run_away_blames_no_batch():
    model = net()
    guard = anchorhold.Guard(model, anchorhold.Fisher(), strength=1.0)
    guard.consolidate([batch(9)])
    optimizer = Plain(model.parameters(), lr=0.1)
    guard.attach(optimizer)
    loss(model, batch(0)).backward()
    first = next(model.parameters())
    first.grad.fill_(float("nan"))
    with pytest.raises(anchorhold.errors.NotFiniteError, match=r"go on without it\.$"):  # it may well be the batch
        optimizer.step()
    nn.init.constant_(first, 1e30)
    with pytest.raises(
        anchorhold.errors.NotFiniteError, match=r"Weights are \S+ times their own size away .* no batch is at"
    ):
        optimizer.step()


def adapted_and_trained(kind, strength, steps, lr=0.1, **settings):
    """A guard of adapters' merged weights, whose model has learned something else in so many steps."""
    peft = pytest.importorskip("peft")
    torch.manual_seed(0)
    model = peft.get_peft_model(net(), peft.LoraConfig(r=2, target_modules=["0"], init_lora_weights=False))
    guard = anchorhold.Guard(
        model, "EWC", strength=strength, form="kronecker", options=anchorhold.GuardOptions(space="merged")
    )
    guard.consolidate([batch(9)])
    optimizer = kind([p for p in model.parameters() if p.requires_grad], lr=lr, **settings)
    guard.attach(optimizer)
    train(model, optimizer, steps)
    return guard


@pytest.mark.parametrize("strength", [30.0, 3e3, 1e6])
def test_merged_weights_that_run_away_are_told_of_before_or_with_the_error(strength):
    """Their anchor is of the adapters' parameters: the pull on these has nothing finite to be made of at last."""
    why = "times their own size away|is too much for SGD"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", anchorhold.AnchorholdWarning)
        with pytest.raises(NotFiniteError, match=rf"(?s)merged weights.*is too large for it.*({why})"):
            adapted_and_trained(torch.optim.SGD, strength, 60, momentum=0.9)
        with pytest.raises(NotFiniteError, match=r"(?s)merged weights.*is too large for it.*times their own size away"):
            adapted_and_trained(torch.optim.ASGD, strength, 60)


def test_merged_weights_that_are_held_well_are_not():
    guard = adapted_and_trained(torch.optim.ASGD, 0.1, 40)  # a warning would be an error here
    assert guard.tasks == 1
