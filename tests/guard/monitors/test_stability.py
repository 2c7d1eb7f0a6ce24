"""A strength that SGD cannot bear is told before it has done harm, and one that leaves Adam no step soon after."""

import dataclasses
import re
import warnings

import pytest
import torch
from torch import nn

import anchorhold
from anchorhold.guard.monitor import FIRST_STEPS as STEPS
from anchorhold.guard.monitor import LATER_STEP as LATER
from anchorhold.guard.stepping.optimizers.effective_rate import largest_curvature, rounded_down
from tests.guard.sam import SAM
from tests.helpers import grouped

SETTINGS = [
    {},
    {"momentum": 0.9},
    {"momentum": 0.9, "dampening": 0.5},
    {"momentum": 0.5, "nesterov": True},
    {"momentum": 0.9, "nesterov": True},
]


@pytest.mark.parametrize("settings", SETTINGS, ids=str)
@pytest.mark.parametrize("share", [0.98, 1.02])
def test_the_bound_is_where_sgd_on_a_quadratic_begins_to_diverge(settings, share):
    settings = {"momentum": 0.0, "dampening": 0.0, "nesterov": False} | settings
    rate = 0.1
    bound = largest_curvature(rate, settings["momentum"], settings["dampening"], nesterov=settings["nesterov"])
    theta = nn.Parameter(torch.ones(1, dtype=torch.float64))
    optimizer = torch.optim.SGD([theta], lr=rate, **settings)
    for _ in range(600):
        optimizer.zero_grad()
        (0.5 * share * bound * theta**2).sum().backward()
        optimizer.step()
    far = float(theta.detach().abs())
    assert far < 1e-3 if share < 1 else far > 1e3


def trained(strength, optimizer=torch.optim.SGD, steps=1, implicit=False, **settings):
    """Train a model beside an anchor of importance 1, with a gradient of nothing but the hold."""
    model = nn.Linear(3, 2).double()
    guard = anchorhold.Guard(
        model, anchorhold.L2(), strength=strength, options=anchorhold.GuardOptions(implicit=implicit)
    )
    guard.consolidate()
    guard.attach(built := optimizer(model.parameters(), **settings))
    with torch.no_grad():
        model.weight.add_(0.1)
    for _ in range(steps):
        built.zero_grad()
        (0 * model(torch.ones(1, 3, dtype=torch.float64)).sum()).backward()
        built.step()
    return model, built, guard


@pytest.mark.parametrize("settings", SETTINGS, ids=str)
def test_what_is_beyond_it_is_told_with_what_is_not(settings):
    bound = largest_curvature(
        0.1, settings.get("momentum", 0), settings.get("dampening", 0), nesterov="nesterov" in settings
    )
    trained(0.49 * bound, lr=0.1, **settings)
    with pytest.warns(
        anchorhold.AnchorholdWarning, match=r"too much for SGD with lr=0.1.*a strength of \S+ or less"
    ) as told:
        trained(0.51 * bound, lr=0.1, **settings)
    advised = float(re.search(r"strength of (\S+) or less", str(told[0].message))[1])
    assert 0.2 * bound / 2 < advised <= 0.5 * bound / 2
    trained(advised, lr=0.1, **settings)


def test_it_is_told_once_and_again_when_something_has_changed():
    with pytest.warns(anchorhold.AnchorholdWarning) as told:
        model, optimizer, guard = trained(11.0, lr=0.1, steps=3)
    assert len(told) == 1
    optimizer.param_groups[0]["lr"] = 0.01

    def step():
        optimizer.zero_grad()
        (0 * model(torch.ones(1, 3, dtype=torch.float64)).sum()).backward()
        optimizer.step()

    step()
    guard.strength = 101.0
    with pytest.warns(anchorhold.AnchorholdWarning, match="strength=101 is too much"):
        step()


def test_weight_decay_counts():
    with pytest.warns(anchorhold.AnchorholdWarning, match="too much"):
        trained(9.9, lr=0.1, weight_decay=0.5)


def test_optimizers_without_such_a_bound_are_not_told():
    trained(1e6, torch.optim.Adam, lr=0.1)


def test_a_guard_that_only_observes_is_not_told():
    model = nn.Linear(3, 2)
    guard = anchorhold.Guard(model, anchorhold.L2(), strength=1e6)
    guard.consolidate()
    guard.attach(optimizer := torch.optim.SGD(model.parameters(), lr=0.1), hold=False)
    model(torch.ones(1, 3)).sum().backward()
    optimizer.step()


def test_closures_are_told_too():
    model = nn.Linear(3, 2)
    guard = anchorhold.Guard(model, anchorhold.L2(), strength=11.0, options=anchorhold.GuardOptions(implicit=False))
    guard.consolidate()
    guard.attach(optimizer := torch.optim.SGD(model.parameters(), lr=0.1))

    def closure():
        optimizer.zero_grad()
        value = model(torch.ones(1, 3)).sum()
        value.backward()
        return value

    with pytest.warns(anchorhold.AnchorholdWarning, match="too much"):
        optimizer.step(closure)


def test_it_does_diverge():
    """What the warning says is so: some hundred steps later nothing is left of the weights."""
    with pytest.warns(anchorhold.AnchorholdWarning, match="until weights are infinite"), warnings.catch_warnings():
        model, *_ = trained(15.0, lr=0.1, steps=300)
    assert not float(model.weight.detach().abs().max()) < 1e30


def test_by_default_it_does_not_and_nothing_is_told():
    """Nor that weights move past the guard: it is the guard that moves them, since the task has no gradient."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        model, _, guard = trained(15.0, lr=0.1, steps=300, implicit=None)
    assert guard.options.implicit and torch.equal(model.weight, guard.anchor["weight"])


def test_a_pull_after_the_step_is_advised():
    with pytest.warns(anchorhold.AnchorholdWarning, match=r"implicit=True, as it is by default with SGD\), whose pull"):
        trained(15.0, lr=0.1)


def test_the_sgd_inside_sam_is_looked_at_too():
    model = nn.Linear(3, 2)
    guard = anchorhold.Guard(model, anchorhold.L2(), strength=11.0, options=anchorhold.GuardOptions(implicit=False))
    guard.consolidate()
    guard.attach(optimizer := SAM(model.parameters(), torch.optim.SGD, lr=0.1))

    def closure():
        optimizer.zero_grad()
        value = model(torch.ones(1, 3)).sum()
        value.backward()
        return value

    closure()
    with pytest.warns(anchorhold.AnchorholdWarning, match="too much for SGD.* or Adam, which has no such bound.$"):
        optimizer.step(closure)  # SAM itself is no SGD, after whose step weights could be pulled


@pytest.mark.daily
@pytest.mark.parametrize(("value", "expected"), [(218.0, 200.0), (0.049, 0.04), (1.0, 1.0), (0.0, 0.0), (-3.0, 0.0)])
def test_what_is_advised_is_rounded_down(value, expected):
    assert rounded_down(value) == pytest.approx(expected)


def test_a_schedule_is_told_of_once():
    model = nn.Linear(3, 2)
    guard = anchorhold.Guard(model, anchorhold.L2(), strength=15.0, options=anchorhold.GuardOptions(implicit=False))
    guard.consolidate()
    guard.attach(optimizer := torch.optim.SGD(model.parameters(), lr=0.1))
    schedule = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.99)

    def train(steps):
        for _ in range(steps):
            optimizer.zero_grad()
            model(torch.ones(1, 3)).sum().backward()
            optimizer.step()
            schedule.step()

    with pytest.warns(anchorhold.AnchorholdWarning, match="too much") as told:
        train(20)
    assert len(told) == 1


def test_what_is_not_trained_or_was_forgotten_is_not_told_of():
    @dataclasses.dataclass(frozen=True)
    class FirstAlone(anchorhold.measures.WeightMeasure):
        choose_when = "never"

        def importance(self, parameter):
            return torch.full_like(parameter, 1000.0 if parameter.shape[0] == 5 else 0.1)

    model = nn.ModuleList([nn.Linear(3, 5), nn.Linear(3, 2)])
    guard = anchorhold.Guard(model, FirstAlone(), strength=0.1)
    guard.consolidate()
    guard.attach(optimizer := torch.optim.SGD(model.parameters(), lr=0.1))
    model[1](torch.ones(1, 3)).sum().backward()
    optimizer.step()  # a head of another task has no gradient
    guard.forget("0.weight", "0.bias")
    optimizer.zero_grad()
    model[0](torch.ones(1, 3)).sum().backward()
    optimizer.step()


def left_for_a_second_task(strength, form="diagonal", steps=STEPS, **settings):
    """Train on a second task with Adam; return what a diagonal's pull leaves it of the steps, by the formula."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 3)).double()
    x, y = torch.randn(64, 6, dtype=torch.float64), torch.randint(0, 3, (64,))
    guard = anchorhold.Guard(model, anchorhold.Fisher(), strength=strength, form=form, **grouped(**settings))
    guard.consolidate([(x, y)])
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    parts = []

    def brute_force(*_):
        left = whole = 0.0
        for name, p in model.named_parameters():
            pull = 2 * strength * guard.importance[name] * (p.detach() - guard.anchor[name])
            left += float((p.grad**2 / (p.grad**2 + pull**2).sqrt()).nansum())
            whole += float(p.grad.abs().sum())
        parts.append((left, whole))

    optimizer.register_step_pre_hook(brute_force)
    guard.attach(optimizer)
    for _ in range(steps):
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x.flip(1)), y.flip(0)).backward()
        optimizer.step()
    left, whole = map(sum, zip(*parts[1:STEPS], strict=True))
    return left / whole


@pytest.mark.parametrize("form", ["diagonal", "rotated"])
def test_a_hold_that_leaves_adam_no_step_for_the_task_is_told_once(form):
    left_for_a_second_task(1.0, form, steps=2 * STEPS)
    with pytest.warns(anchorhold.AnchorholdWarning, match=r"strength=1e.08 is far too much.*tolerance=.*\.$") as told:
        share = left_for_a_second_task(1e8, form, steps=2 * STEPS)
    assert len(told) == 1
    # Where an implicit hold is refused, as with Adam in coordinates that are no weights, it is not advised.
    assert ("implicit=True" in str(told[0].message)) == (form == "diagonal")
    if form == "diagonal":
        assert f"Adam has {share:.1%} of its first steps left" in str(told[0].message)
    left_for_a_second_task(1e8, form, steps=STEPS - 1)


def test_it_is_told_of_layers_that_are_held_as_maps_with_their_batch_norms():
    """These are elsewhere than their weights: with large inputs the map is small."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 3)).double()
    x, y = 100 * torch.randn(64, 6, dtype=torch.float64), torch.randint(0, 3, (64,))
    for _ in range(100):
        model(x)
    guard = anchorhold.Guard(model.eval(), anchorhold.Fisher(), strength=1e8, batch_norm="fold", protect=["0.*", "1.*"])
    guard.consolidate([(x, y)])
    guard.attach(optimizer := torch.optim.Adam(model.parameters(), lr=1e-3))

    def step():
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x.flip(1)), y.flip(0)).backward()
        optimizer.step()

    for _ in range(STEPS - 1):
        step()
    with pytest.warns(anchorhold.AnchorholdWarning, match="far too much"):
        step()


@pytest.mark.parametrize("how", ["closure", "warmup"])
def test_it_is_told_with_a_closure_and_where_a_rate_has_warmed_up(how):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 3)).double()
    x, y = torch.randn(64, 6, dtype=torch.float64), torch.randint(0, 3, (64,))
    guard = anchorhold.Guard(model, anchorhold.Fisher(), strength=1e8)
    guard.consolidate([(x, y)])
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    guard.attach(optimizer)

    def closure():
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(x.flip(1)), y.flip(0))
        loss.backward()
        return loss

    def train(steps, rate=0.01):
        optimizer.param_groups[0]["lr"] = rate
        for _ in range(steps):
            optimizer.step(closure)

    warming = 0 if how == "closure" else 2 * STEPS
    train(warming, 1e-30)
    with pytest.warns(anchorhold.AnchorholdWarning, match="strength=1e.08 is far too much") as told:
        train(LATER - warming)
    assert len(told) == 1


def test_an_implicit_hold_leaves_adam_its_step_and_undoes_it():
    with pytest.warns(anchorhold.AnchorholdWarning, match="the pull after the step leaves") as told:
        left_for_a_second_task(1e8, implicit=True)
    assert len(told) == 1
