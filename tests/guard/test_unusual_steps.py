"""Steps that raise and are tried again, that are taken twice, and optimizers that do more than step."""

import dataclasses
from typing import ClassVar

import pytest
import torch
from torch import nn

import anchorhold
from anchorhold.errors import OrderError
from anchorhold.measures.base import Needs

X = torch.linspace(-1, 1, 60, dtype=torch.float64).reshape(20, 3)


def linear():
    torch.manual_seed(0)
    return nn.Linear(3, 2).double()


@pytest.fixture(params=[1, 2], ids=["hooks once", "hooks twice"])
def hooks_run(request):
    """How often hooks run in a step of a class that is derived from ``descent``."""
    return request.param


@pytest.fixture
def descent(hooks_run):
    """A class of optimizers to derive from that no other test knows.

    torch puts the hooks around the ``step`` of a class when the first optimizer of that very class is made. A derived
    class whose own ``step`` calls its base's has them run around its own, and from then on around its base's too. So
    with ``torch.optim.SGD`` as the base, it would matter whether any test before has made one.
    """

    class Descent(torch.optim.Optimizer):
        def __init__(self, params, lr):
            super().__init__(params, {"lr": lr})

        @torch.no_grad()
        def step(self, closure=None):
            if closure is not None:
                closure()
            for group in self.param_groups:
                for parameter in group["params"]:
                    parameter.add_(parameter.grad, alpha=-group["lr"])

    if hooks_run == 2:
        Descent(linear().parameters(), 0.01)
    return Descent


def test_what_is_tried_in_both_situations_is_in_both(descent, hooks_run):
    class Derived(descent):
        def step(self, closure=None):
            return super().step(closure)

    model, calls = linear(), []
    optimizer = Derived(model.parameters(), 0.01)
    optimizer.register_step_pre_hook(lambda *_: calls.append("before"))
    optimizer.register_step_post_hook(lambda *_: calls.append("after"))
    model(X).square().mean().backward()
    optimizer.step()
    assert calls == ["before"] * hooks_run + ["after"] * hooks_run


def two_tasks(measure, descent, *, fail=()):
    class Flaky(descent):
        """Raises once, before it has moved anything, when it is told to."""

        fails = False

        def step(self, closure=None):
            if self.fails:
                self.fails = False
                raise MemoryError("for a moment")
            return super().step(closure)

    model = linear()
    optimizer = Flaky(model.parameters(), 0.01)
    guard = anchorhold.Guard(model, measure, strength=10.0)
    guard.attach(optimizer)
    for task in range(2):
        for i in range(4):
            optimizer.zero_grad()
            model(X + task).square().mean().backward()
            if (task, i) in fail:
                optimizer.fails = True
                with pytest.raises(MemoryError):
                    optimizer.step()
            optimizer.step()
        steps = guard.gradients.path.steps
        guard.consolidate([X])
    return [*model.parameters(), *guard.importance.values()], steps


@pytest.mark.parametrize("measure", ["SOS", "SI", "EWC"])
def test_a_step_that_raised_and_is_tried_again_counts_once(measure, descent):
    undisturbed, steps = two_tasks(measure, descent)
    retried, counted = two_tasks(measure, descent, fail={(0, 0), (0, 2), (1, 1)})
    assert counted == steps == 4
    for a, b in zip(undisturbed, retried, strict=True):
        assert torch.equal(a, b)


def held(measure, make=torch.optim.SGD, strength=1.0, **options):
    """A guard that holds a model to where it was, from which it has been moved away since."""
    model = linear()
    optimizer = make(model.parameters(), 0.01, **options)
    guard = anchorhold.Guard(model, measure, strength=strength, options=anchorhold.GuardOptions(implicit=False))
    guard.attach(optimizer)
    optimizer.zero_grad()
    model(X).square().mean().backward()
    optimizer.step()
    guard.consolidate([X])
    optimizer.zero_grad()
    with torch.no_grad():
        model.weight.add_(1.0)
    return model, optimizer, guard


@pytest.mark.parametrize("measure", ["SOS", "EWC"])
def test_a_gradient_that_has_the_penalty_in_it_is_not_stepped_with_again(measure):
    model, optimizer, guard = held(measure)
    model(X).square().mean().backward()
    optimizer.step()
    before, steps = model.weight.detach().clone(), guard.gradients.path.steps
    with pytest.raises(OrderError, match=r"'weight' is still that of the last step.*zero_grad\(\) and backward\(\)"):
        optimizer.step()
    assert torch.equal(model.weight, before) and guard.gradients.path.steps == steps
    for set_to_none in (True, False):
        optimizer.zero_grad(set_to_none=set_to_none)
        model(X).square().mean().backward()
        optimizer.step()
    assert guard.gradients.path.steps == steps + 2


def test_two_steps_for_one_backward_are_measured_where_the_gradient_is_the_tasks():
    model, optimizer, guard = held("SI")
    model(X).square().mean().backward()
    gradient, before = model.weight.grad.clone(), model.weight.detach().clone()
    optimizer.step()
    optimizer.step()
    assert torch.equal(model.weight.grad, gradient)
    expected = -gradient * (model.weight.detach() - before)
    torch.testing.assert_close(guard.gradients.path.running["SI"]["path"]["weight"], expected)


@pytest.mark.parametrize("measure", ["SOS", "SI", "EWC"])
def test_gradients_that_an_optimizer_has_cleared_are_measured_and_stay_cleared(measure, descent):
    class Clearing(descent):
        """Clears the gradients itself, as optimizers do that step during backward()."""

        def step(self, closure=None):
            loss = super().step(closure)
            self.zero_grad()
            return loss

    model, clearing, guard = held(measure, Clearing)
    twin, usual, expected = held(measure)
    for _ in range(2):
        model(X).square().mean().backward()
        clearing.step()
        assert model.weight.grad is None
        usual.zero_grad()
        twin(X).square().mean().backward()
        usual.step()
    assert guard.gradients.path.steps == expected.gradients.path.steps == 2
    torch.testing.assert_close(dict(model.named_parameters()), dict(twin.named_parameters()))
    torch.testing.assert_close(guard.gradients.path.running, expected.gradients.path.running)


@pytest.mark.parametrize("foreach", [False, True])
def test_observing_alone_is_right_with_an_optimizer_that_overwrites_gradients(foreach):
    model, optimizer, guard = held("SI", strength=0.0, momentum=0.9, nesterov=True, foreach=foreach)
    total = torch.zeros_like(model.weight)
    for _ in range(5):
        optimizer.zero_grad()
        model(X).square().mean().backward()
        gradient, before = model.weight.grad.clone(), model.weight.detach().clone()
        optimizer.step()
        total -= gradient * (model.weight.detach() - before)
    torch.testing.assert_close(guard.gradients.path.running["SI"]["path"]["weight"], total)


@pytest.mark.parametrize("measure", ["L2", "SOS"])
def test_gradients_that_share_their_memory_are_held_each_by_itself(measure):
    pair = nn.ParameterList(
        [nn.Parameter(torch.ones(2, 3)), nn.Parameter(torch.ones(2, 3)), nn.Parameter(torch.ones(4))]
    )
    optimizer = torch.optim.SGD(pair.parameters(), 0.1)
    guard = anchorhold.Guard(pair, measure, strength=1.0, options=anchorhold.GuardOptions(implicit=False))
    guard.attach(optimizer)

    def step():
        loss = (X[:2].float() + (pair[0] + pair[1])).square().sum() + pair[2].sum()
        found = torch.autograd.grad(loss, list(pair))
        for parameter, gradient in zip(pair, found, strict=True):
            parameter.grad = gradient
        before = [parameter.detach().clone() for parameter in pair]
        expected = [
            b - 0.1 * (g + 2 * guard.importance[str(i)] * (b - guard.anchor[str(i)]) if guard.tasks else g)
            for i, (b, g) in enumerate(zip(before, [g.clone() for g in found], strict=True))
        ]
        optimizer.step()
        for parameter, weights in zip(pair, expected, strict=True):
            torch.testing.assert_close(parameter.detach(), weights)

    step()
    guard.consolidate()
    with torch.no_grad():
        pair[0].add_(1.0)
        pair[1].sub_(0.5)
        pair[2].add_(1.0)
    step()


@dataclasses.dataclass(frozen=True)
class Travelled(anchorhold.measures.PathMeasure):
    """The length of the way, whatever moved the weights."""

    choose_when: ClassVar[str] = "never"

    @property
    def needs(self):
        return Needs(step=True)

    @property
    def running(self):
        return {"length": "task"}

    def update_(self, states, seen):
        states["length"].add_(seen.step.abs())

    def importance(self, states, displacement, steps):
        return states["length"].clone()


def test_what_the_penalty_alone_moves_has_travelled():
    model = nn.ModuleList([linear(), linear()])
    optimizer = torch.optim.SGD(model.parameters(), 0.01)
    guard = anchorhold.Guard(model, Travelled(), strength=1.0, options=anchorhold.GuardOptions(implicit=False))
    guard.attach(optimizer)
    (model[0](X) + model[1](X)).square().mean().backward()
    optimizer.step()
    guard.consolidate()
    with torch.no_grad():
        model[1].weight.add_(1.0)
    length = torch.zeros_like(model[1].weight)
    for _ in range(3):
        optimizer.zero_grad()
        model[0](X).square().mean().backward()
        before = model[1].weight.detach().clone()
        optimizer.step()
        length += (model[1].weight.detach() - before).abs()
    assert length.sum() > 0
    torch.testing.assert_close(guard.consolidate()["Travelled"].importance["1.weight"], length)


def centring(base):
    class Centring(base):
        """Changes the gradients before its base takes them."""

        def step(self, closure=None):
            with torch.no_grad():
                for parameter in self.param_groups[0]["params"]:
                    if parameter.grad is not None:
                        parameter.grad.sub_(parameter.grad.mean())
            return super().step(closure)

    return Centring


def moving_on(base):
    class MovingOn(base):
        """Moves the weights once more after its base."""

        def step(self, closure=None):
            super().step(closure)
            with torch.no_grad():
                for parameter in self.param_groups[0]["params"]:
                    parameter.mul_(0.9)

    return MovingOn


@pytest.mark.parametrize("derived", [centring, moving_on])
@pytest.mark.parametrize("measure", ["SOS", "SI", "EWC"])
@pytest.mark.parametrize("with_closure", [False, True], ids=["plain", "closure"])
def test_a_step_that_calls_its_bases_is_one_step(descent, derived, measure, with_closure):
    """Weights, paths and steps, against an optimizer that has all of its step in one class."""

    class Whole(torch.optim.Optimizer):
        """The same step without a base's, written out."""

        def __init__(self, params, lr):
            super().__init__(params, {"lr": lr})

        @torch.no_grad()
        def step(self, closure=None):
            parameters = self.param_groups[0]["params"]
            if derived is centring:
                for parameter in parameters:
                    if parameter.grad is not None:
                        parameter.grad.sub_(parameter.grad.mean())
            if closure is not None:
                closure()
            for parameter in parameters:
                parameter.add_(parameter.grad, alpha=-0.01)
                if derived is moving_on:
                    parameter.mul_(0.9)

    def trained(kind):
        model = linear()
        optimizer = kind(model.parameters(), 0.01)
        guard = anchorhold.Guard(model, measure, strength=5.0)
        guard.attach(optimizer)
        for task in range(2):
            for step in range(3):

                def loss(scale=1 + step):
                    optimizer.zero_grad()
                    model(scale * X).square().mean().backward()

                if with_closure:
                    optimizer.step(loss)
                else:
                    loss()
                    optimizer.step()
            if task == 0:
                guard.consolidate([X])
        return model, guard

    model, guard = trained(derived(descent))
    expected, reference = trained(Whole)
    assert guard.gradients.path.steps == reference.gradients.path.steps == 3
    torch.testing.assert_close(model.weight, expected.weight)
    for label, states in reference.gradients.path.running.items():
        for state, tensors in states.items():
            torch.testing.assert_close(guard.gradients.path.running[label][state], tensors)
