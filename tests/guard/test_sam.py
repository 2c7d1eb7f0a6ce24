"""SAM evaluates its closure where it has climbed to; what is measured is the step from where it began."""

import pytest
import torch

import anchorhold
from anchorhold.guard.stepping import bundles
from tests.guard.helpers import batch, loss, net, weights
from tests.guard.sam import SAM


def trained(measures, strength=0.0, again=False, steps=4):
    """Train with SAM, with a guard, and return it with −Σ gΔ, the mean of g² and the weights, worked out beside it."""
    model = net()
    guard = anchorhold.Guard(model, measures[0], strength=strength, watch=measures[1:], from_scratch=True)
    optimizer = SAM(model.parameters(), torch.optim.SGD, lr=0.1, rho=0.5)
    guard.attach(optimizer)
    path = {name: torch.zeros_like(p) for name, p in weights(model).items()}
    average = {name: torch.zeros_like(p) for name, p in weights(model).items()}
    for i in range(steps):

        def closure(i=i):
            optimizer.zero_grad()
            value = loss(model, batch(i))
            value.backward()
            return value

        value = closure()
        before = weights(model)
        gradients = {name: p.grad.clone() for name, p in model.named_parameters()}
        assert value.requires_grad
        optimizer.step(closure)
        for name, after in weights(model).items():
            path[name] -= gradients[name] * (after - before[name])
            average[name] = 0.999 * average[name] + 0.001 * gradients[name].square()
    return guard, path, average, model


@pytest.mark.parametrize("measures", [["SI"], ["SOS"], ["SI", "SOS"]], ids=str)
def test_measures_see_the_gradient_and_the_step_from_where_it_began(measures):
    guard, path, average, _ = trained(measures)
    running = guard.gradients.path.running
    for name in path:
        if "SI" in measures:
            torch.testing.assert_close(running["SI"]["path"][name], path[name], rtol=1e-10, atol=1e-14)
        if "SOS" in measures:
            torch.testing.assert_close(running["SOS"]["second_moment"][name], average[name], rtol=1e-10, atol=1e-14)


def test_the_displacement_is_from_there_too():
    guard, path, _, model = trained(["SI"])
    start = weights(net())
    found = guard.consolidate()["SI"].importance
    for name, theta in weights(model).items():
        expected = path[name].clamp(min=0) / ((theta - start[name]).square() + 0.1)
        torch.testing.assert_close(found[name], expected, rtol=1e-10, atol=1e-14)


def test_it_is_held():
    """The hold's gradient is added where the closure is evaluated, as a penalty in the loss would be."""
    model, twin = net(), net()
    guard = anchorhold.Guard(model, anchorhold.L2(), strength=0.7)
    guard.consolidate()
    anchor = weights(model)
    optimizer, its = (SAM(m.parameters(), torch.optim.SGD, lr=0.1, rho=0.5) for m in (model, twin))
    guard.attach(optimizer)
    for i in range(4):

        def closure(model=model, optimizer=optimizer, i=i, held=False):
            optimizer.zero_grad()
            value = loss(model, batch(i))
            if held:
                value = value + 0.7 * sum((p - anchor[n]).square().sum() for n, p in model.named_parameters())
            value.backward()
            return value

        closure()
        optimizer.step(closure)
        closure(twin, its)
        its.step(lambda i=i: closure(twin, its, i, held=True))
    for name, value in weights(twin).items():
        torch.testing.assert_close(weights(model)[name], value, rtol=1e-9, atol=1e-12)


def test_a_sam_that_evaluates_where_it_begins_is_measured_there():
    """Some call the closure twice themselves, and are given no gradient before."""

    class Twice(SAM):
        def step(self, closure=None):
            with torch.enable_grad():
                closure()
            super().step(closure)

    model = net()
    guard = anchorhold.Guard(model, "SI", strength=0.0)
    optimizer = Twice(model.parameters(), torch.optim.SGD, lr=0.1, rho=0.5)
    guard.attach(optimizer)

    def closure():
        optimizer.zero_grad()
        value = loss(model, batch(0))
        value.backward()
        return value

    before = weights(model)
    gradients = dict(zip(before, torch.autograd.grad(loss(model, batch(0)), list(model.parameters())), strict=True))
    optimizer.step(closure)
    for name, after in weights(model).items():
        expected = -gradients[name] * (after - before[name])
        torch.testing.assert_close(guard.gradients.path.running["SI"]["path"][name], expected, rtol=1e-10, atol=1e-14)


@pytest.mark.parametrize("set_to_none", [True, False])
def test_gradients_that_an_earlier_step_has_left_are_not_taken_for_new_ones(set_to_none):
    """An optimizer that moves first, and is called with its closure alone, has no gradient where its step began."""

    class MovesFirst(torch.optim.SGD):
        @torch.no_grad()
        def step(self, closure=None):
            for p in self.param_groups[0]["params"]:
                p.add_(0.1)
            with torch.enable_grad():
                closure()
            super().step()

    model = net()
    guard = anchorhold.Guard(model, "SI", strength=0.0)
    optimizer = MovesFirst(model.parameters(), lr=0.1)
    guard.attach(optimizer)
    expected = {name: torch.zeros_like(p) for name, p in weights(model).items()}

    def train(steps):
        for i in range(steps):

            def closure(i=i):
                optimizer.zero_grad(set_to_none=set_to_none)
                value = loss(model, batch(i))
                value.backward()
                return value

            before = weights(model)
            optimizer.step(closure)
            for name, p in model.named_parameters():
                expected[name] -= p.grad * (p.detach() - before[name])
            if not set_to_none:
                optimizer.zero_grad(set_to_none=False)

    with pytest.warns(anchorhold.AnchorholdWarning, match="MovesFirst moves weights before it evaluates") as told:
        train(3)
    assert len(told) == 1
    for name, value in expected.items():
        torch.testing.assert_close(guard.gradients.path.running["SI"]["path"][name], value, rtol=1e-10, atol=1e-14)


def test_one_that_begins_with_plain_steps_is_measured_rightly_from_its_first_climb_on():
    class Later(SAM):
        climbs = False

        @torch.no_grad()
        def step(self, closure=None):
            if self.climbs:
                super().step(closure)
            else:
                with torch.enable_grad():
                    closure()
                self.base_optimizer.step()

    model = net()
    guard = anchorhold.Guard(model, "SI", strength=0.0)
    optimizer = Later(model.parameters(), torch.optim.SGD, lr=0.1, rho=0.5)
    guard.attach(optimizer)
    expected = {name: torch.zeros_like(p) for name, p in weights(model).items()}
    for i in range(10):
        optimizer.climbs = i >= 5

        def closure(i=i):
            optimizer.zero_grad()
            value = loss(model, batch(i))
            value.backward()
            return value

        closure()
        before, gradients = weights(model), {name: p.grad.clone() for name, p in model.named_parameters()}
        optimizer.step(closure)
        for name, after in weights(model).items():
            expected[name] -= gradients[name] * (after - before[name])
    for name, value in expected.items():
        torch.testing.assert_close(guard.gradients.path.running["SI"]["path"][name], value, rtol=1e-10, atol=1e-14)


@pytest.mark.parametrize("measure", ["SI", "SOS", "EWC"])
def test_a_closure_that_is_spoilt_where_it_is_evaluated_leaves_weights_where_they_were(measure):
    model = net()
    guard = anchorhold.Guard(model, measure, strength=0.1, from_scratch=True)
    optimizer = SAM(model.parameters(), torch.optim.SGD, lr=0.1, rho=0.5)
    guard.attach(optimizer)
    loss(model, batch(0)).backward()
    before = weights(model)

    def closure():
        optimizer.zero_grad()
        value = loss(model, batch(0)) * torch.nan
        value.backward()
        return value

    with pytest.raises(anchorhold.errors.NotFiniteError, match="holds a NaN"):
        optimizer.step(closure)
    assert all(torch.equal(value, weights(model)[name]) for name, value in before.items())


@pytest.mark.parametrize("small", [0, 2**14])
def test_parameters_that_thaw_between_its_steps(small, monkeypatch):
    monkeypatch.setattr(bundles, "SMALL", small)
    model = net()
    model[0].requires_grad_(False)
    guard = anchorhold.Guard(model, "SI", strength=0.0)
    optimizer = SAM(model.parameters(), torch.optim.SGD, lr=0.1, rho=0.5)
    guard.attach(optimizer)
    for i in range(4):
        if i == 2:
            model[0].requires_grad_(True)

        def closure(i=i):
            optimizer.zero_grad()
            value = loss(model, batch(i))
            value.backward()
            return value

        closure()
        optimizer.step(closure)
    assert set(guard.consolidate()["SI"].importance) == set(weights(model))
