"""A hold that is applied after the step, implicitly: each step against its formula, and where the steps lead to."""

import copy
import math
import warnings

import pytest
import schedulefree
import torch
from torch import nn
from torch.nn import functional

import anchorhold
from anchorhold.errors import NotFiniteError
from anchorhold.guard.stepping import finite_checks, pulls
from anchorhold.holds import base as hold_base
from tests.guard.helpers import batch, consolidated, loss, net, train, weights
from tests.guard.sam import SAM
from tests.helpers import grouped

C = 0.7


def root(squares, decay):
    """√v̂ of a mean of squares that forgets, without the bias of its beginning."""
    v = torch.zeros_like(squares[0])
    for square in squares:
        v = decay * v + (1 - decay) * square
    return (v / (1 - decay ** len(squares))).sqrt()


def largest_root(squares, decay):
    """The largest v so far, as amsgrad takes it: corrected for the last step, whichever it is from."""
    v = most = torch.zeros_like(squares[0])
    for square in squares:
        v = decay * v + (1 - decay) * square
        most = torch.maximum(most, v)
    return (most / (1 - decay ** len(squares))).sqrt()


def rectified(g):
    """RAdam's, of β₂ = 0.9: plain steps at first."""
    longest, t = 2 / (1 - 0.9) - 1, len(g)
    length = longest - 2 * t * 0.9**t / (1 - 0.9**t)
    if length <= 5:
        return torch.full_like(g[0], 0.01)
    ratio = math.sqrt((length - 4) * (length - 2) * longest / ((longest - 4) * (longest - 2) * length))
    v = root([x**2 for x in g], 0.9) * math.sqrt(1 - 0.9**t)  # ε is beside v, not v̂
    return 0.01 * ratio * math.sqrt(1 - 0.9**t) / (v + 1e-8)


def centred(g):
    v = m = torch.zeros_like(g[0])
    for x in g:
        v, m = 0.99 * v + 0.01 * x**2, 0.99 * m + 0.01 * x
    return 0.01 / ((v - m**2).sqrt() + 1e-8)


def summed(g):
    return sum(x**2 for x in g).sqrt()


def of_size(g):
    u = torch.zeros_like(g[0])
    for x in g:
        u = torch.maximum(0.999 * u, x.abs() + 1e-8)
    return u


def adam(g):
    return 0.01 / (root([x**2 for x in g], 0.999) + 1e-8)


REACHES = {
    "SGD": (lambda p: torch.optim.SGD(p, lr=0.1), lambda g: 0.1),
    "decay": (lambda p: torch.optim.SGD(p, lr=0.1, weight_decay=0.1), lambda g: 0.1),
    "momentum": (lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9), lambda g: 1.0),
    "dampening": (lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, dampening=0.4), lambda g: 0.6),
    "Nesterov": (lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.75, nesterov=True), lambda g: 0.4),
    "SGD, fused": (lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, fused=True), lambda g: 1.0),
    "SGD, a tensor": (lambda p: torch.optim.SGD(p, lr=torch.tensor(0.1, dtype=torch.float64)), lambda g: 0.1),
    "Adam": (lambda p: torch.optim.Adam(p, lr=0.01), adam),
    "Adam, foreach": (lambda p: torch.optim.Adam(p, lr=0.01, foreach=True), adam),
    "Adam, fused": (lambda p: torch.optim.Adam(p, lr=0.01, fused=True), adam),
    "Adam, ε": (
        lambda p: torch.optim.Adam(p, lr=0.01, eps=0.1),
        lambda g: 0.01 / (root([x**2 for x in g], 0.999) + 0.1),
    ),
    "AdamW": (lambda p: torch.optim.AdamW(p, lr=0.01, weight_decay=0.5), adam),
    "amsgrad": (
        lambda p: torch.optim.AdamW(p, lr=0.01, amsgrad=True, betas=(0.9, 0.5)),
        lambda g: 0.01 / (largest_root([x**2 for x in g], 0.5) + 1e-8),
    ),
    "NAdam": (lambda p: torch.optim.NAdam(p, lr=0.01), adam),
    "RAdam": (lambda p: torch.optim.RAdam(p, lr=0.01, betas=(0.9, 0.9)), rectified),
    "Adamax": (lambda p: torch.optim.Adamax(p, lr=0.01), lambda g: 0.01 / of_size(g)),
    "RMSprop": (
        lambda p: torch.optim.RMSprop(p, lr=0.01, momentum=0.5),
        lambda g: 0.02 / (root([x**2 for x in g], 0.99) * math.sqrt(1 - 0.99 ** len(g)) + 1e-8),
    ),
    "RMSprop, centred": (lambda p: torch.optim.RMSprop(p, lr=0.01, centered=True), centred),
    "Adagrad": (
        lambda p: torch.optim.Adagrad(p, lr=0.1, lr_decay=0.3),
        lambda g: 0.1 / (1 + 0.3 * (len(g) - 1)) / (summed(g) + 1e-10),
    ),
}
"""Optimizers, and how far each goes for its gradients so far, by hand."""


def formula(form, make, reach, strength=C, steps=8, **options):
    """Train beside a guard by hand, and return the models of both."""
    model = net()
    guard = consolidated(model, strength=strength, form=form, implicit=True, **options)
    matrices, anchor, linear_term = guard.held.matrices, guard.anchor, guard.held.linear_term
    twin = copy.deepcopy(model)
    optimizer, its = make(model.parameters()), make(twin.parameters())
    guard.attach(optimizer)
    seen = {name: [] for name, _ in twin.named_parameters()}
    for i in range(steps):
        for own, by in ((model, optimizer), (twin, its)):
            by.zero_grad()
            loss(own, batch(i)).backward()
        decay = its.param_groups[0]["weight_decay"] if type(its) is torch.optim.SGD else 0.0
        for name, p in twin.named_parameters():
            seen[name].append(p.grad + decay * p.detach())
        optimizer.step()
        its.step()
        own = dict(twin.named_parameters())
        with torch.no_grad():
            for matrix in matrices.values():
                names = matrix.block.parameters
                sizes = [own[n].numel() for n in names]
                q = dense(matrix, {n: own[n] for n in names})
                h = torch.cat(
                    [torch.as_tensor(reach(seen[n]), dtype=torch.float64).expand(own[n].shape).flatten() for n in names]
                )
                d = torch.cat([(own[n] - anchor[n]).flatten() for n in names])
                r = torch.cat([linear_term.get(n, torch.zeros_like(own[n])).flatten() for n in names])
                system = torch.eye(len(d), dtype=torch.float64) + 2 * strength * h.unsqueeze(1) * q
                d = torch.linalg.solve(system, d + 2 * strength * h * r)
                for n, part in zip(names, d.split(sizes), strict=True):
                    own[n].copy_(anchor[n] + part.view_as(own[n]))
    return model, twin


def dense(matrix, parameters):
    """Q as a matrix, column by column."""
    names = list(parameters)
    sizes = [parameters[n].numel() for n in names]
    columns = []
    for unit in torch.eye(sum(sizes), dtype=torch.float64):
        parts = zip(names, unit.split(sizes), strict=True)
        applied = matrix.apply({n: part.view_as(parameters[n]) for n, part in parts})
        columns.append(torch.cat([applied[n].flatten() for n in names]))
    return torch.stack(columns, dim=1)


def same(one, other, tolerance=1e-10):
    for name, value in weights(other).items():
        torch.testing.assert_close(weights(one)[name], value, rtol=tolerance, atol=tolerance)


@pytest.mark.daily
@pytest.mark.parametrize(("make", "reach"), REACHES.values(), ids=REACHES)
def test_a_step_is_the_optimizers_own_and_then_the_formula(make, reach):
    same(*formula("diagonal", make, reach))


@pytest.mark.daily
@pytest.mark.parametrize(
    "form", ["rotated", "kronecker", "lowrank", "dense", anchorhold.Kronecker(inputs="diagonal")], ids=str
)
@pytest.mark.parametrize("kind", ["SGD", "dampening"])
def test_in_other_forms_it_is_one_product_where_all_weights_go_equally_far(form, kind):
    same(*formula(form, *REACHES[kind]))


@pytest.mark.parametrize("kind", ["momentum", "Adam"])
def test_a_hold_with_a_linear_term(kind):
    leaning = {"anchor": "mean", "gradient_term": True}
    same(*formula("diagonal", *REACHES[kind], **leaning))


@pytest.mark.parametrize("form", ["rotated", "kronecker", "lowrank", "dense"])
def test_in_other_forms_a_linear_term_is_refused(form):
    """Rounding would make one up along directions that nothing holds, by as much more as the strength is larger."""
    for leaning in ({"anchor": "mean"}, {"anchor": "mean", "gradient_term": True}):
        with pytest.raises(anchorhold.errors.ConfigurationError, match="which gives the hold a linear term"):
            anchorhold.Guard(net(), "EWC", form=form, **grouped(implicit=True, **leaning))


def test_a_linear_term_has_each_patterns_own_strength():
    model = net()
    patterns = {"0.*": 0.0, "*": 10.0}
    guard = anchorhold.Guard(
        model,
        "EWC",
        strength=patterns,
        anchor="mean",
        options=anchorhold.GuardOptions(gradient_term=True, implicit=True),
    )
    guard.consolidate([batch(0)])
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    guard.attach(optimizer)
    before = [p.detach().clone() for p in model.parameters()]
    for _ in range(20):
        optimizer.zero_grad()
        (1e-9 * loss(model, batch(1))).backward()
        optimizer.step()
    moved = [float((p.detach() - b).abs().max()) for p, b in zip(model.parameters(), before, strict=True)]
    assert max(moved[:2]) < 1e-9 and min(moved[2:]) > 1e-5


def test_a_refused_step_is_not_measured():
    model = net()
    guard = anchorhold.Guard(
        model, "EWC", strength=1.0, form="rotated", options=anchorhold.GuardOptions(implicit=True), watch=["SOS"]
    )
    guard.consolidate([batch(0)])
    groups = [{"params": [p], "lr": 0.1 * (i + 1)} for i, p in enumerate(model.parameters())]
    optimizer = torch.optim.SGD(groups, lr=0.1)
    guard.attach(optimizer)
    for _ in range(2):
        optimizer.zero_grad()
        loss(model, batch(1)).backward()
        with pytest.raises(anchorhold.errors.OptimizerError, match="by different rates"):
            optimizer.step()
    assert guard.gradients.path.steps == 0
    assert not any(float(t.abs().sum()) for t in guard._core.state.ledgers["SOS"].running["second_moment"].values())


@pytest.mark.parametrize("groups", [(0.1, 0.02), (0.1, 0.0)], ids=str)
@pytest.mark.parametrize("kind", [torch.optim.SGD, torch.optim.Adam])
def test_each_group_goes_by_its_own_rate_and_nothing_is_pulled_at_rate_0(groups, kind):
    """Also where a schedule changes it between steps."""
    model = net()
    guard = consolidated(model, strength=C, implicit=True)
    twin = copy.deepcopy(model)

    def make(network):
        parts = zip((network[0], network[2]), groups, strict=True)
        return kind([{"params": part.parameters(), "lr": rate} for part, rate in parts])

    optimizer, its = make(model), make(twin)
    guard.attach(optimizer)
    schedule = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.5)
    seen = {name: [] for name, _ in twin.named_parameters()}
    for i in range(3):
        for network, by in ((model, optimizer), (twin, its)):
            by.zero_grad()
            loss(network, batch(i)).backward()
            by.step()
        for place, (name, p) in enumerate(twin.named_parameters()):
            seen[name].append(p.grad.clone())
            rate = groups[place // 2] * 0.5**i
            h = rate if kind is torch.optim.SGD else rate / (root([x**2 for x in seen[name]], 0.999) + 1e-8)
            with torch.no_grad():
                p.copy_(guard.anchor[name] + (p - guard.anchor[name]) / (1 + 2 * C * h * guard.importance[name]))
        schedule.step()
        for group in its.param_groups:
            group["lr"] *= 0.5
    same(model, twin)


# At the ends


@pytest.mark.daily
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("strength", [1e6, 1e30, 1e38], ids=str)
@pytest.mark.parametrize("make", [kind for kind, _ in REACHES.values()], ids=REACHES)
def test_no_strength_is_too_much(make, strength, dtype):
    model = net(dtype=dtype)
    guard = anchorhold.Guard(model, anchorhold.L2(), strength=strength, options=anchorhold.GuardOptions(implicit=True))
    guard.consolidate()
    optimizer = make(model.parameters())
    guard.attach(optimizer)
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # nor is there anything to be told of
        for i in range(5):
            optimizer.zero_grad()
            loss(model, batch(i, dtype=dtype)).backward()
            optimizer.step()
    for name, value in weights(model).items():
        torch.testing.assert_close(value, guard.anchor[name], rtol=0, atol=1e-5)


class Words(nn.Module):
    """An embedding of words that not all are called for, so that a row of it may be no number without a sign."""

    def __init__(self):
        super().__init__()
        self.words = nn.Embedding(6, 4)
        self.head = nn.Linear(4, 3)

    def forward(self, x):
        return self.head(self.words(x).mean(1))


@pytest.mark.parametrize("where", ["processor", "accelerator"])
@pytest.mark.parametrize("form", ["rotated", "kronecker", "rotated16"])
def test_a_weight_that_is_no_number_does_not_spread_over_its_layer(form, where, monkeypatch):
    torch.manual_seed(0)
    model = Words()
    guard = anchorhold.Guard(
        model, "EWC", strength=1.0, form=form, options=anchorhold.GuardOptions(implicit=where == "processor")
    )
    guard.consolidate([torch.randint(0, 6, (8, 5))])
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    guard.attach(optimizer)
    if where == "accelerator":  # where no pull is looked at
        for module in (finite_checks, pulls, hold_base):
            monkeypatch.setattr(module, "is_looked_at", lambda tensor: False)
    with torch.no_grad():
        model.words.weight[5, 2] = torch.nan
    before = copy.deepcopy(model.state_dict())
    functional.cross_entropy(model(torch.randint(0, 5, (8, 5))), torch.randint(0, 3, (8,))).backward()
    with pytest.raises(NotFiniteError, match=r"'words\.weight' themselves are not finite any more, at step 1"):
        optimizer.step()
    torch.testing.assert_close(model.state_dict(), before, rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize("form", ["rotated", "kronecker", "lowrank", "dense"])
def test_nor_in_other_forms(form):
    model = net(dtype=torch.float32)
    guard = anchorhold.Guard(model, "EWC", strength=1e30, form=form, options=anchorhold.GuardOptions(implicit=True))
    data = batch(9, n=40, dtype=torch.float32)
    guard.consolidate([data])
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    guard.attach(optimizer)

    def train():
        for i in range(20):
            optimizer.zero_grad()
            loss(model, batch(i, dtype=torch.float32)).backward()
            optimizer.step()

    with pytest.warns(anchorhold.AnchorholdWarning, match="is far too much for this task"):
        train()
    held = 2 * guard.penalty() / guard.strength
    assert held.isfinite() and held < 1e-10


@pytest.mark.parametrize(("form", "kind"), [("diagonal", "momentum"), ("diagonal", "Adam"), ("rotated", "momentum")])
def test_a_strength_that_is_next_to_nothing_changes_no_bit(form, kind):
    make, runs = REACHES[kind][0], []
    for strength in (None, 0.0, 1e-300):
        model = net()
        guard = consolidated(model, strength=strength or 0.0, form=form, implicit=strength is not None)
        optimizer = make(model.parameters())
        if strength is not None:
            guard.attach(optimizer)
        train(model, optimizer)
        runs.append(weights(model))
        torch.manual_seed(0)
    assert all(torch.equal(run[name], value) for run in runs[1:] for name, value in runs[0].items())


# Around the step


@pytest.mark.parametrize("kind", ["momentum", "Adam"])
def test_measures_see_the_optimizers_step_alone(kind):
    """Δ is θ′ − θ, and g the task's: the pull comes after both."""
    model = net()
    guard = consolidated(model, strength=50.0, watch=["SI"], implicit=True)
    optimizer = REACHES[kind][0](model.parameters())
    twin = copy.deepcopy(model)
    its = REACHES[kind][0](twin.parameters())
    guard.attach(optimizer)
    path = {name: torch.zeros_like(p) for name, p in weights(model).items()}
    for i in range(4):
        twin.load_state_dict(model.state_dict())  # the next step of an optimizer that has seen the same gradients
        for network, by in ((twin, its), (model, optimizer)):
            by.zero_grad()
            loss(network, batch(i)).backward()
            before = weights(network)
            by.step()
            if network is twin:
                for name, p in twin.named_parameters():
                    path[name] -= p.grad * (p.detach() - before[name])
    for name, value in guard.gradients.path.running["SI"]["path"].items():
        torch.testing.assert_close(value, path[name], rtol=1e-9, atol=1e-14)


@pytest.mark.parametrize("fused", [True, False])
@pytest.mark.parametrize("kind", [torch.optim.SGD, torch.optim.Adam])
def test_a_step_that_a_scaler_skips_pulls_nothing(fused, kind):
    model = net(dtype=torch.float32)
    guard = anchorhold.Guard(model, anchorhold.L2(), strength=1e3, options=anchorhold.GuardOptions(implicit=True))
    guard.consolidate()
    with torch.no_grad():
        model[0].weight.add_(1.0)
    optimizer = kind(model.parameters(), lr=0.01, fused=fused)
    guard.attach(optimizer)
    scaler = torch.amp.GradScaler("cpu", init_scale=8.0)
    moved = []
    for overflow in (True, False):
        optimizer.zero_grad()
        scaler.scale(loss(model, batch(dtype=torch.float32)) * (float("inf") if overflow else 1.0)).backward()
        before = weights(model)
        scaler.step(optimizer)
        scaler.update()
        moved.append(any(not torch.equal(before[name], value) for name, value in weights(model).items()))
    assert moved == [False, True]


@pytest.mark.parametrize("fused", [True, False])
def test_a_loss_scale_is_none_of_its_business(fused):
    runs = []
    for scale in (None, 1024.0):
        torch.manual_seed(1)
        model = net(dtype=torch.float32)
        guard = anchorhold.Guard(model, anchorhold.L2(), strength=5.0, options=anchorhold.GuardOptions(implicit=True))
        guard.consolidate()
        optimizer = torch.optim.Adam(model.parameters(), lr=0.01, fused=fused)
        guard.attach(optimizer)
        scaler = torch.amp.GradScaler("cpu", init_scale=scale or 1.0, enabled=scale is not None)
        for i in range(3):
            optimizer.zero_grad()
            scaler.scale(loss(model, batch(i, dtype=torch.float32))).backward()
            scaler.step(optimizer)
            scaler.update()
        runs.append(weights(model))
    for name, value in runs[0].items():
        torch.testing.assert_close(runs[1][name], value, rtol=1e-5, atol=1e-7)


def test_a_closure_is_given_the_tasks_loss_and_the_pull_comes_after():
    model = net()
    guard = consolidated(model, strength=C, implicit=True)
    twin = copy.deepcopy(model)
    optimizer, its = (torch.optim.SGD(m.parameters(), lr=0.1) for m in (model, twin))
    guard.attach(optimizer)

    def closure():
        optimizer.zero_grad()
        value = loss(model, batch())
        value.backward()
        return value

    expected = loss(twin, batch())
    torch.testing.assert_close(optimizer.step(closure), expected)
    expected.backward()
    its.step()
    with torch.no_grad():
        for name, p in twin.named_parameters():
            p.copy_(guard.anchor[name] + (p - guard.anchor[name]) / (1 + 0.2 * C * guard.importance[name]))
    same(model, twin)


@pytest.mark.parametrize("kind", ["momentum", "Adam"])
def test_what_has_no_gradient_is_pulled_all_the_same(kind):
    model = net()
    guard = anchorhold.Guard(model, anchorhold.L2(), strength=1e3, options=anchorhold.GuardOptions(implicit=True))
    guard.consolidate()
    with torch.no_grad():
        model[2].bias.add_(1.0)
    optimizer = REACHES[kind][0](model.parameters())
    guard.attach(optimizer)
    loss(model, batch()).backward()
    model[2].bias.grad = None
    optimizer.step()
    torch.testing.assert_close(model[2].bias.detach(), guard.anchor["2.bias"], rtol=0, atol=1e-2)
    assert model[2].bias.grad is None


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_weights_of_16_bits_are_pulled_in_full_precision(dtype):
    torch.manual_seed(0)
    model = nn.Linear(4, 3).to(dtype)
    guard = anchorhold.Guard(model, anchorhold.L2(), strength=2.0, options=anchorhold.GuardOptions(implicit=True))
    guard.consolidate()
    with torch.no_grad():
        model.weight.add_(1.0)
    before = model.weight.detach().clone()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.25)
    guard.attach(optimizer)
    for p in model.parameters():
        p.grad = torch.zeros_like(p)
    optimizer.step()
    anchor = guard.anchor["weight"]
    expected = (anchor + (before.float() - anchor) / 2).to(dtype)
    assert torch.equal(model.weight.detach(), expected)


def test_other_holds_go_on_as_they_are():
    class Nudge(anchorhold.holds.Hold):
        name = "nudge"

        def gradient(self, held):
            return {name: torch.ones_like(p) for name, p in held.parameters.items()}

    model = net()
    guard = anchorhold.Guard(
        model, anchorhold.L2(), strength=2.0, holds=[Nudge()], options=anchorhold.GuardOptions(implicit=True)
    )
    guard.consolidate()
    before = weights(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.25)
    guard.attach(optimizer)
    for p in model.parameters():
        p.grad = torch.zeros_like(p)
    optimizer.step()
    for name, value in weights(model).items():
        torch.testing.assert_close(value, before[name] - 0.125, rtol=0, atol=1e-12)


# What is refused


class Own(torch.optim.Optimizer):
    def __init__(self, parameters):
        super().__init__(parameters, {"lr": 0.1})

    def step(self, closure=None):
        pass


class OwnAdam(torch.optim.Adam):
    """The same steps with another name."""


class HalfAdam(torch.optim.Adam):
    def step(self, closure=None):
        return super().step(closure)


@pytest.mark.parametrize(
    "make",
    [
        Own,
        HalfAdam,
        torch.optim.LBFGS,
        torch.optim.Rprop,
        torch.optim.Adadelta,
        torch.optim.ASGD,
        torch.optim.Adafactor,
        lambda p: SAM(p, torch.optim.SGD, lr=0.1),
        lambda p: schedulefree.SGDScheduleFree(p, lr=0.1),
    ],
)
def test_an_optimizer_whose_steps_are_not_known_is_refused(make):
    model = net()
    guard = consolidated(model, implicit=True)
    optimizer = make(model.parameters())
    with pytest.raises(anchorhold.errors.OptimizerError, match=r"implicit=True with .*implicit=False"):
        guard.attach(optimizer)
    guard.attach(optimizer, hold=False)  # which it may observe
    guard.attach(OwnAdam(model.parameters()))


def test_a_rate_for_each_weight_is_refused_in_other_forms():
    model = net()
    guard = consolidated(model, form="rotated", implicit=True)
    with pytest.raises(
        anchorhold.errors.OptimizerError, match="in the form 'rotated' with Adam, which moves each weight"
    ):
        guard.attach(torch.optim.Adam(model.parameters()))
    guard.attach(torch.optim.SGD(model.parameters(), lr=0.1))


@pytest.mark.parametrize("how", ["rates", "frozen"])
def test_a_block_of_which_parts_go_differently_far_is_refused(how):
    model = net()
    guard = consolidated(model, form="rotated", implicit=True)
    weight, bias = model[0].weight, model[0].bias
    rest = [p for p in model.parameters() if p is not bias]
    groups = [{"params": rest}, {"params": [bias], "lr": 0.2 if how == "rates" else 0.1}]
    optimizer = torch.optim.SGD(groups, lr=0.1)
    guard.attach(optimizer)
    loss(model, batch()).backward()
    if how == "frozen":
        bias.requires_grad_(False)
    before = weights(model)
    with pytest.raises(anchorhold.errors.OptimizerError, match=r"one matrix of '0.weight' by 0.1, '0.bias' by 0"):
        optimizer.step()
    assert all(torch.equal(before[name], value) for name, value in weights(model).items())
    assert weight.grad is not None


def test_momentum_without_an_end_is_refused():
    model = net()
    guard = consolidated(model, implicit=True)
    with pytest.raises(anchorhold.errors.OptimizerError, match="momentum=1, whose steps never settle"):
        guard.attach(torch.optim.SGD(model.parameters(), lr=0.1, momentum=1.0))


@pytest.mark.parametrize(
    ("options", "match"),
    [
        ({"implicit": 1}, "implicit=1: expected True or False"),
        ({"implicit": True, "batch_norm": "fold"}, "implicit=True with batch_norm='fold'"),
        ({"implicit": True, "form": anchorhold.Rotated(sums="exact")}, "has no coordinates of its own"),
    ],
)
def test_what_cannot_be_is_refused(options, match):
    with pytest.raises(anchorhold.errors.ConfigurationError, match=match):
        anchorhold.Guard(net(), "EWC", **grouped(**options))


# State


def test_a_guard_that_was_saved_goes_on_exactly(tmp_path):
    model = net()
    guard = consolidated(model, strength=C, watch=["SI"], implicit=True)
    assert guard.options.implicit and "strength 0.7, pulling after steps" in repr(guard)
    guard.attach(optimizer := torch.optim.Adam(model.parameters(), lr=0.01))
    train(model, optimizer)
    guard.save(tmp_path / "guard")
    twin = copy.deepcopy(model)
    other = anchorhold.Guard(twin, anchorhold.Fisher(), watch=["SI"], options=anchorhold.GuardOptions(implicit=True))
    other.load(tmp_path / "guard")
    its = torch.optim.Adam(twin.parameters(), lr=0.01)
    its.load_state_dict(copy.deepcopy(optimizer.state_dict()))
    other.attach(its)
    train(model, optimizer, seed=5)
    train(twin, its, seed=5)
    assert all(torch.equal(weights(twin)[name], value) for name, value in weights(model).items())


def test_a_state_says_how_it_holds_only_where_that_is_not_usual():
    implicit, explicit = (consolidated(net(), implicit=how) for how in (True, False))
    assert "implicit" not in explicit.state_dict() and implicit.state_dict()["implicit"] is True
    with pytest.raises(anchorhold.errors.StateError, match="made with implicit=True; this Guard has implicit=False"):
        explicit.load_state_dict(implicit.state_dict())
    with pytest.raises(anchorhold.errors.StateError, match="made with implicit=False; this Guard has implicit=True"):
        implicit.load_state_dict(explicit.state_dict())


def test_the_explicit_hold_says_at_its_first_step_what_would_do_instead():
    model = net()
    guard = anchorhold.Guard(model, anchorhold.L2(), strength=1e3, options=anchorhold.GuardOptions(implicit=False))
    guard.consolidate()
    guard.attach(optimizer := torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9))
    with pytest.warns(anchorhold.AnchorholdWarning, match=r"too much for SGD.*implicit=True"):
        train(model, optimizer, steps=1)
