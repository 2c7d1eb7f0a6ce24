"""The list of monitors: all of them by default, some by name, none, and one from outside."""

import warnings

import pytest
import torch
from torch import nn

from anchorhold import Guard, GuardOptions
from anchorhold.errors import AnchorholdWarning, ConfigurationError, warn
from anchorhold.guard.monitors import MONITORS, Monitor, register_monitor


def trained(monitors, steps=20):
    """A strength that is far too much for SGD, on a model with weights of its own."""
    torch.manual_seed(0)
    model = nn.Linear(3, 2)
    inputs, targets = torch.randn(16, 3), torch.randint(2, (16,))
    guard = Guard(model, "EWC", strength=1e-3, options=GuardOptions(implicit=False), monitors=monitors)
    guard.consolidate([(inputs, targets)])
    guard.strength = 1e4
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    guard.attach(optimizer)
    for _ in range(steps):
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(inputs), 1 - targets).backward()
        optimizer.step()
    return {name: p.detach().clone() for name, p in model.named_parameters()}


def test_they_change_nothing_that_is_learned():
    with pytest.warns(AnchorholdWarning):
        seen = trained(None, steps=6)
    unseen = trained((), steps=6)
    assert all(torch.equal(seen[name], unseen[name]) for name in seen)


def test_without_them_nothing_is_said():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        trained((), steps=6)


def test_some_may_be_named():
    with pytest.warns(AnchorholdWarning, match="too much for SGD"):
        trained(["stability"], steps=3)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        trained(["standstill"], steps=3)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (["stabilty"], "Did you mean 'stability'?"),
        ("stability", r"expected several names, such as \('stability',\)"),
        ([nn.Linear], "expected names of"),
    ],
)
def test_what_is_no_monitor_is_refused(given, message):
    with pytest.raises(ConfigurationError, match=message):
        Guard(nn.Linear(2, 2), "EWC", monitors=given)


def test_one_from_outside(monkeypatch):
    monkeypatch.setattr(MONITORS, "_known", dict(MONITORS._known))

    @register_monitor("third-step")
    class ThirdStep(Monitor):
        """Warn at the third step of a task."""

        def before_step(self, step):
            if step.taken == 2:
                warn(f"The third step, by {type(step.optimizer).__name__}.")

    with pytest.warns(AnchorholdWarning, match="The third step, by SGD."):
        trained(["third-step"], steps=3)
    assert list(MONITORS)[-1] == "third-step"


def test_each_has_a_name_of_its_own_and_is_found_by_it():
    assert all(kind.name == name for name, kind in MONITORS.items()) and len(MONITORS) == 12
