"""A hold after steps that undoes them whole is told of, and none that lets anything be learned."""

import warnings

import pytest
import torch
from torch import nn

import anchorhold
from anchorhold.guard.monitor import FIRST_STEPS as STEPS
from anchorhold.guard.monitor import LATER_STEP as LATER
from tests.helpers import grouped

X, Y = torch.randn(64, 6, dtype=torch.float64, generator=torch.Generator().manual_seed(1)), torch.arange(64) % 3


def held(strength, form="diagonal", optimizer="SGD", lr=0.1, **settings):
    """A guard that holds a small network, and a function that takes steps of another task."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 3)).double()
    guard = anchorhold.Guard(model, anchorhold.Fisher(), strength=strength, form=form, **grouped(**settings))
    guard.consolidate([(X, Y)])
    steps = getattr(torch.optim, optimizer)(model.parameters(), lr=lr)
    guard.attach(steps)

    def train(count, rate=lr):
        steps.param_groups[0]["lr"] = rate
        for _ in range(count):
            steps.zero_grad()
            nn.functional.cross_entropy(model(X.flip(1)), Y.flip(0)).backward()
            steps.step()

    return guard, train


def moved(guard):
    return max(float((p.detach() - guard.anchor[name]).abs().max()) for name, p in guard.parameters.items())


@pytest.mark.parametrize("form", ["diagonal", "rotated", "kronecker"])
def test_what_stands_still_is_told_of_once(form):
    guard, train = held(1e9, form)
    train(STEPS - 1)
    with pytest.warns(
        anchorhold.AnchorholdWarning, match=r"strength=1e.09 is far too much.*, 1e.07 to begin with"
    ) as told:
        train(LATER)
    assert len(told) == 1 and moved(guard) < 1e-4
    guard.consolidate([(X, Y)])
    train(LATER)  # the same strength again, of which all is said


def test_what_is_left_is_what_the_formula_leaves():
    """Of one weight, 1 / (1 + 2ηcω)."""
    model = nn.Linear(1, 2, bias=False).double()
    nn.init.zeros_(model.weight)
    guard = anchorhold.Guard(model, anchorhold.Fisher(), strength=1e4)
    guard.consolidate([torch.ones(1, 1, dtype=torch.float64)])  # ω = p(1 - p) = 1/4 for both
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    guard.attach(optimizer)

    def train():
        for _ in range(STEPS):
            optimizer.zero_grad()
            model(torch.ones(1, 1, dtype=torch.float64))[0, 0].backward()
            optimizer.step()

    with pytest.warns(anchorhold.AnchorholdWarning, match=rf"leaves {100 / (1 + 2 * 0.1 * 1e4 / 4):.2g} %"):
        train()


def test_a_rate_that_warms_up_is_looked_at_when_it_has():
    _, train = held(1e9)
    train(2 * STEPS, rate=1e-30)
    with pytest.warns(anchorhold.AnchorholdWarning, match="is far too much"):
        train(LATER - 2 * STEPS)


def test_an_implicit_hold_under_adam_is_told_of_too():
    _, train = held(1e9, optimizer="Adam", implicit=True)
    with pytest.warns(anchorhold.AnchorholdWarning, match="Adam's step included"):
        train(STEPS)


@pytest.mark.parametrize(
    ("strength", "settings"),
    [
        (1.0, {}),
        (100.0, {}),
        (100.0, {"form": "rotated"}),
        (0.0, {}),
        (1e9, {"anchor": "mean", "gradient_term": True, "implicit": True}),
    ],
)
def test_what_learns_something_or_is_centred_elsewhere_is_not(strength, settings):
    guard, train = held(strength, **settings)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        train(LATER)
    assert moved(guard) > 1e-3 or settings.get("gradient_term")


def test_a_tolerance_looks_after_its_strength_by_itself():
    torch.manual_seed(0)
    model = nn.Linear(6, 3).double()
    guard = anchorhold.Guard(model, anchorhold.Fisher(), form="rotated", tolerance=anchorhold.Tolerance(1e-9))
    guard.consolidate([(X, Y)])
    guard.keep(torch.randn(32, 6, dtype=torch.float64))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    guard.attach(optimizer)
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        for _ in range(2 * STEPS):
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(X.flip(1)), Y.flip(0)).backward()
            optimizer.step()
    assert not any("far too much" in str(each.message) for each in told)
