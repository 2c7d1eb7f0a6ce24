"""The hooks, with every optimizer of torch: a held step equals a step on loss + penalty."""

import copy
import weakref

import pytest
import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

import anchorhold
from anchorhold.guard.stepping import bundles
from anchorhold.guard.stepping.bundles import Row
from tests.guard.helpers import batch, consolidated, loss, net, train, weights

OPTIMIZERS = {
    "SGD": lambda p: torch.optim.SGD(p, lr=0.1),
    "momentum": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, nesterov=True, weight_decay=0.1),
    "SGD-fused": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, fused=True),
    "Adam": lambda p: torch.optim.Adam(p, lr=0.01),
    "Adam-foreach": lambda p: torch.optim.Adam(p, lr=0.01, foreach=True),
    "Adam-fused": lambda p: torch.optim.Adam(p, lr=0.01, fused=True),
    "AdamW": lambda p: torch.optim.AdamW(p, lr=0.01, amsgrad=True),
    "Adamax": lambda p: torch.optim.Adamax(p, lr=0.01),
    "NAdam": lambda p: torch.optim.NAdam(p, lr=0.01),
    "RAdam": lambda p: torch.optim.RAdam(p, lr=0.01),
    "Adagrad": lambda p: torch.optim.Adagrad(p, lr=0.01),
    "Adadelta": lambda p: torch.optim.Adadelta(p, lr=0.1),
    "RMSprop": lambda p: torch.optim.RMSprop(p, lr=0.01),
    "Rprop": lambda p: torch.optim.Rprop(p, lr=0.01),
    "ASGD": lambda p: torch.optim.ASGD(p, lr=0.01),
    "Adafactor": lambda p: torch.optim.Adafactor(p, lr=0.01),
}


def penalised_copy(guard, model):
    """The same problem with the penalty written into the loss."""
    twin = copy.deepcopy(model)
    importance, anchor, strength = guard.importance, guard.anchor, guard.strength

    def total_loss(data):
        penalty = sum((importance[n] * (p - anchor[n]) ** 2).sum() for n, p in twin.named_parameters())
        return loss(twin, data) + strength * penalty

    return twin, total_loss


@pytest.mark.parametrize("measure", ["EWC", "SI"])
@pytest.mark.parametrize("make", OPTIMIZERS.values(), ids=OPTIMIZERS)
def test_a_held_step_is_a_step_on_loss_plus_penalty(make, measure):
    model = net()
    guard = consolidated(model, watch=[measure] if measure == "SI" else [], implicit=False)
    twin, total_loss = penalised_copy(guard, model)
    optimizer, twin_optimizer = make(model.parameters()), make(twin.parameters())
    guard.attach(optimizer)
    for i in range(4):
        optimizer.zero_grad()
        loss(model, batch(i)).backward()
        optimizer.step()
        twin_optimizer.zero_grad()
        total_loss(batch(i)).backward()
        twin_optimizer.step()
    for name, value in weights(twin).items():
        torch.testing.assert_close(weights(model)[name], value, rtol=1e-9, atol=1e-11)


@pytest.mark.parametrize("make", [OPTIMIZERS["SGD"], lambda p: torch.optim.LBFGS(p, lr=0.5, max_iter=4)])
@pytest.mark.parametrize("search", [None, "strong_wolfe"])
@pytest.mark.parametrize("by_keyword", [False, True])
def test_closures(make, search, by_keyword):
    model = net()
    guard = consolidated(model, watch=["SI"], implicit=False)
    twin, total_loss = penalised_copy(guard, model)

    def build(parameters):
        optimizer = make(parameters)
        if isinstance(optimizer, torch.optim.LBFGS):
            optimizer.param_groups[0]["line_search_fn"] = search
        return optimizer

    optimizer, twin_optimizer = build(model.parameters()), build(twin.parameters())
    guard.attach(optimizer)
    expected = {name: torch.zeros_like(p) for name, p in model.named_parameters()}
    for i in range(3):

        def closure(i=i):
            optimizer.zero_grad()
            value = loss(model, batch(i))
            value.backward()
            return value

        def twin_closure(i=i):
            twin_optimizer.zero_grad()
            value = total_loss(batch(i))
            value.backward()
            return value

        gradients = torch.autograd.grad(loss(model, batch(i)), list(model.parameters()))
        before = weights(model)
        optimizer.step(closure=closure) if by_keyword else optimizer.step(closure)
        twin_optimizer.step(twin_closure)
        for gradient, (name, after) in zip(gradients, weights(model).items(), strict=True):
            expected[name] -= gradient * (after - before[name])
    for name, value in weights(twin).items():
        torch.testing.assert_close(weights(model)[name], value, rtol=1e-8, atol=1e-10)
    raw = guard.consolidate([batch(0)])["SI"].raw
    for name, value in expected.items():
        torch.testing.assert_close(raw[name], value, rtol=1e-9, atol=1e-12)


def test_several_optimizers_and_groups():
    model = net()
    guard = consolidated(model, watch=["SI", "SOS"])
    twin, total_loss = penalised_copy(guard, model)

    def build(m):
        first = torch.optim.SGD([{"params": [m[0].weight], "lr": 0.1}, {"params": [m[0].bias], "lr": 0.01}])
        return first, torch.optim.Adam(m[2].parameters(), lr=0.01)

    optimizers, twins = build(model), build(twin)
    guard.attach(*optimizers)
    for i in range(3):
        for optimizer, other in zip(optimizers, twins, strict=True):
            optimizer.zero_grad()
            other.zero_grad()
        loss(model, batch(i)).backward()
        total_loss(batch(i)).backward()
        for optimizer, other in zip(optimizers, twins, strict=True):
            optimizer.step()
            other.step()
    for name, value in weights(twin).items():
        torch.testing.assert_close(weights(model)[name], value, rtol=1e-9, atol=1e-11)
    found = guard.consolidate([batch(0)])
    assert all(bool((found["SI"].raw[name] != 0).any()) for name in guard.parameters)


def test_an_observed_gradient_serves_every_optimizer_of_the_step():
    model = net()
    guard = anchorhold.Guard(model, anchorhold.SIU())
    optimizers = [torch.optim.SGD(layer.parameters(), lr=0.1) for layer in (model[0], model[2])]
    guard.attach(*optimizers)
    loss(model, batch(0)).backward()
    guard.gradients.independent(loss(model, batch(1)))
    for optimizer in optimizers:
        optimizer.step()
    with pytest.raises(
        anchorhold.errors.OrderError, match="independent gradient"
    ):  # used up, so not taken for the next step
        optimizers[0].step()


@pytest.mark.parametrize("implicit", [False, None])
@pytest.mark.parametrize("measure", ["EWC", "SI"])
def test_a_parameter_without_gradient_is_still_held(measure, implicit):
    """As it would be with the penalty in the loss: a re-initialised branch that this task never uses returns."""
    model = net()
    model.extra = nn.Linear(2, 2).double()
    watch = [] if measure == "EWC" else [measure]
    guard = anchorhold.Guard(
        model, anchorhold.L2(), strength=0.5, watch=watch, options=anchorhold.GuardOptions(implicit=implicit)
    )
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    if measure == "SI":
        guard.attach(optimizer)
        loss(model[:3], batch(0)).backward()
        optimizer.step()
    guard.consolidate()
    guard.attach(optimizer)
    with torch.no_grad():
        model.extra.weight.add_(1.0)
    optimizer.zero_grad()
    loss(model[:3], batch(0)).backward()
    optimizer.step()
    # One step of size 0.1 against the gradient 2·0.5·1, or to where that gradient accounts for the way.
    left = 1 / 1.1 if guard.options.implicit else 0.9
    torch.testing.assert_close(model.extra.weight, guard.anchor["extra.weight"] + left)


def test_the_task_gradient_is_back_after_the_step_where_measures_wait_for_it():
    model = net()
    guard = consolidated(model, watch=["SI"])
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    guard.attach(optimizer)
    loss(model, batch(0)).backward()
    given = {name: p.grad for name, p in model.named_parameters()}
    values = {name: g.clone() for name, g in given.items()}
    optimizer.step()
    for name, parameter in model.named_parameters():
        assert parameter.grad is given[name]
        torch.testing.assert_close(parameter.grad, values[name], rtol=0, atol=0)


def test_a_step_that_fails_leaves_no_trace():
    """The optimizer's own error must not leave a borrowed buffer behind as the next step's gradient."""
    model = net()
    guard = consolidated(model, watch=["SI"], implicit=False)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    guard.attach(optimizer)
    fail = optimizer.register_step_pre_hook(lambda *_: (_ for _ in ()).throw(RuntimeError("stop")))
    loss(model, batch(0)).backward()
    with pytest.raises(RuntimeError, match="stop"):
        optimizer.step()
    fail.remove()
    twin, total_loss = penalised_copy(guard, model)
    twin_optimizer = torch.optim.SGD(twin.parameters(), lr=0.1)
    optimizer.zero_grad(set_to_none=False)
    loss(model, batch(1)).backward()
    optimizer.step()
    total_loss(batch(1)).backward()
    twin_optimizer.step()
    for name, value in weights(twin).items():
        torch.testing.assert_close(weights(model)[name], value)


def test_detach_and_attach_again():
    model = net()
    guard = consolidated(model, implicit=False)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    twin = copy.deepcopy(model)
    guard.attach(optimizer)
    guard.detach()
    guard.detach()
    loss(model, batch(0)).backward()
    optimizer.step()
    loss(twin, batch(0)).backward()
    torch.optim.SGD(twin.parameters(), lr=0.1).step()
    for name, value in weights(twin).items():
        torch.testing.assert_close(weights(model)[name], value, rtol=0, atol=0)
    guard.attach(optimizer)
    guard.attach(optimizer)  # attaching twice must not hold twice
    twin, total_loss = penalised_copy(guard, model)
    optimizer.zero_grad()
    loss(model, batch(0)).backward()
    optimizer.step()
    total_loss(batch(0)).backward()
    torch.optim.SGD(twin.parameters(), lr=0.1).step()
    for name, value in weights(twin).items():
        torch.testing.assert_close(weights(model)[name], value)


def test_an_optimizer_that_is_given_twice_holds_once_and_the_latest_word_counts():
    model = net()
    guard = consolidated(model, implicit=False)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for hold in (True, False):
        guard.attach(optimizer, optimizer, hold=hold)
        twin, total_loss = penalised_copy(guard, model)
        optimizer.zero_grad()
        loss(model, batch(0)).backward()
        optimizer.step()
        (total_loss(batch(0)) if hold else loss(twin, batch(0))).backward()
        torch.optim.SGD(twin.parameters(), lr=0.1).step()
        for name, value in weights(twin).items():
            torch.testing.assert_close(weights(model)[name], value)


class Lookahead(torch.optim.Optimizer):
    """An optimizer around another, as many are written, that moves the weights once more after the other's step."""

    def __init__(self, optimizer):
        super().__init__([p for group in optimizer.param_groups for p in group["params"]], {})
        self.optimizer = optimizer
        self.slow = [p.detach().clone() for p in self.param_groups[0]["params"]]

    def step(self, closure=None):
        self.optimizer.step(closure)
        with torch.no_grad():
            for slow, fast in zip(self.slow, self.param_groups[0]["params"], strict=True):
                slow.lerp_(fast, 0.5)
                fast.copy_(slow)


def test_the_step_of_an_optimizer_around_another_is_the_whole_step():
    model = net()
    guard = anchorhold.Guard(model, anchorhold.SI())
    optimizer = Lookahead(torch.optim.SGD(model.parameters(), lr=0.1))
    guard.attach(optimizer)
    before = weights(model)
    loss(model, batch(0)).backward()
    gradients = {name: p.grad.clone() for name, p in model.named_parameters()}
    optimizer.step()
    after = weights(model)
    for name, path in guard.gradients.path.running["SI"]["path"].items():
        torch.testing.assert_close(path, -gradients[name] * (after[name] - before[name]))


class Copies(TorchDispatchMode):
    """Counts the copies of whole parameters' gradients."""

    def __init__(self):
        super().__init__()
        self.made = 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        self.made += function is torch.ops.aten.clone.default
        return function(*args, **(kwargs or {}))


def test_gradients_from_a_closure_are_copied_only_for_measures_that_wait_for_the_step():
    made = {}
    for measure in (anchorhold.SOS(), anchorhold.SI()):
        model = net()
        guard = anchorhold.Guard(model, measure)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        guard.attach(optimizer)

        def closure(model=model, optimizer=optimizer):
            optimizer.zero_grad()
            value = loss(model, batch(0))
            value.backward()
            return value

        optimizer.step(closure)
        with Copies() as copies:
            optimizer.step(closure)
        made[measure.name] = copies.made
    assert made == {"SOS": 0, "SI": 4 * (bundles.SMALL == 0)}  # in rows, measures have copies anyway


def test_the_penalty_in_ones_own_loss():
    model = net()
    guard = consolidated(model)
    twin, total_loss = penalised_copy(guard, model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    guard.attach(optimizer, hold=False)
    (loss(model, batch(0)) + guard.penalty()).backward()
    optimizer.step()
    total_loss(batch(0)).backward()
    torch.optim.SGD(twin.parameters(), lr=0.1).step()
    for name, value in weights(twin).items():
        torch.testing.assert_close(weights(model)[name], value)


@pytest.mark.parametrize("implicit", [False, None])
def test_detaching_frees_what_only_steps_need(implicit):
    model = net()
    guard = consolidated(model, watch=["SI"], implicit=implicit)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    guard.attach(optimizer)
    loss(model, batch(0)).backward()
    optimizer.step()
    walks = guard._attachment.watcher.layouts._made.values()
    reused = [kept for walk in walks for bundle in walk.bundles for kept in bundle._reused.values()]
    buffers = [weakref.ref(kept.flat if isinstance(kept, Row) else kept) for kept in reused]
    assert len(buffers) == (8 if bundles.SMALL == 0 else 4) if implicit is False else buffers
    del reused, walks
    guard.detach()
    assert not any(ref() is not None for ref in buffers)


def test_an_optimizer_that_is_gone_is_forgotten():
    model = net()
    guard = consolidated(model)
    for _ in range(3):
        guard.attach(torch.optim.Adam(model.parameters()))
    assert len([ref for ref, _ in guard._attachment._hooks if ref() is not None]) <= 1


def test_the_penalty_in_pieces_is_the_penalty(monkeypatch):
    """Where it is not differentiated it is computed piece by piece."""
    monkeypatch.setattr("anchorhold.tensors.pieces.PIECE", 3)
    guard = consolidated(net())
    differentiable = guard.penalty()
    with torch.no_grad():
        value = guard.penalty()
    assert differentiable.requires_grad
    assert value.item() > 0
    torch.testing.assert_close(value, differentiable.detach(), rtol=1e-12, atol=0)


def test_pieces_and_odd_memory_layouts_give_the_same(monkeypatch):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.Flatten(), nn.Linear(16, 3)).to(memory_format=torch.channels_last)
    model = model.double()
    x, y = torch.randn(5, 3, 4, 4, dtype=torch.float64), torch.tensor([0, 1, 2, 0, 1])
    results = []
    for piece in (3, 2**16):
        monkeypatch.setattr("anchorhold.tensors.pieces.PIECE", piece)
        run = copy.deepcopy(model)
        guard = anchorhold.Guard(run, anchorhold.SI(), strength=0.5, watch=["SOS"])
        optimizer = torch.optim.Adam(run.parameters())
        guard.attach(optimizer)
        for _ in range(2):
            for _ in range(3):
                optimizer.zero_grad()
                nn.functional.cross_entropy(run(x), y).backward()
                optimizer.step()
            guard.consolidate()
        results.append((weights(run), guard.importance, guard.held.of("SOS")))
    for few, whole in zip(*results, strict=True):
        for name, value in whole.items():
            torch.testing.assert_close(few[name], value, rtol=1e-12, atol=0)


@pytest.mark.parametrize("measure", ["EWC", "MAS", "L2", "SOS", "SI"])
@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_a_gradient_that_is_no_number_stops_the_step_whatever_the_measure(measure, value):
    model = net()
    guard = anchorhold.Guard(model, measure, strength=0.1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    guard.attach(optimizer)
    for held in (False, True):
        train(model, optimizer)
        if held:
            guard.consolidate([batch(0)])
        else:
            guard.gradients.restart_task()
        optimizer.zero_grad()
        loss(model, batch(0)).backward()
        model[0].weight.grad[0, 0] = value
        before = weights(model)
        gradients = [p.grad.clone() for p in model.parameters()]
        with pytest.raises(anchorhold.errors.NotFiniteError, match=r"'0.weight' holds a NaN or an infinity at step 1"):
            optimizer.step()
        for (name, kept), p, gradient in zip(before.items(), model.parameters(), gradients, strict=True):
            assert torch.equal(kept, weights(model)[name])
            torch.testing.assert_close(p.grad, gradient, equal_nan=True)
        assert guard.gradients.path.steps == 0


def test_weights_that_are_lost_are_not_blamed_on_a_batch():
    model = net()
    guard = consolidated(model, strength=7.0)
    guard.attach(optimizer := torch.optim.Adam(model.parameters()))
    with torch.no_grad():
        model[0].weight.fill_(torch.nan)
    loss(model, batch(0)).backward()
    with pytest.raises(
        anchorhold.errors.NotFiniteError,
        match=r"weights '0.weight' themselves .*here strength=7.* No batch is at fault",
    ):
        optimizer.step()


@pytest.mark.parametrize("measure", ["SI", "SOS"])
def test_a_spoilt_gradient_stops_the_step_also_where_another_one_is_measured(measure):
    model = net()
    guard = anchorhold.Guard(model, measure, strength=0.1)
    guard.attach(optimizer := torch.optim.SGD(model.parameters(), lr=0.01))
    guard.gradients.observe(loss(model, batch(0)))
    loss(model, batch(0)).backward()
    model[0].weight.grad[0, 0] = torch.nan
    with pytest.raises(anchorhold.errors.NotFiniteError, match=r"'0.weight' holds a NaN"):
        optimizer.step()
    assert guard.gradients.path.steps == 0


@pytest.mark.parametrize(
    "returned", [lambda value: (value, value), lambda value: float(value.detach())], ids=["pair", "float"]
)
def test_a_closure_may_return_what_it_likes(returned):
    model = net()
    guard = consolidated(model)
    guard.attach(optimizer := torch.optim.SGD(model.parameters(), lr=0.01))

    def closure():
        optimizer.zero_grad()
        value = loss(model, batch(0))
        value.backward()
        return returned(value)

    optimizer.step(closure)
    assert guard.gradients.path.steps == 1


def test_a_list_of_optimizers_is_refused_with_how_to_give_several():
    model = net()
    guard = anchorhold.Guard(model, "EWC", strength=1.0)
    with pytest.raises(
        anchorhold.errors.OptimizerError, match=r"given a list; .*one after the other, attach\(first, second\)"
    ):
        guard.attach([torch.optim.SGD(model.parameters(), lr=0.1)])
