"""A hold that is applied after the step, implicitly: each step against its formula, and where the steps lead to."""

import copy
import math

import pytest
import torch
from torch import nn

import holdfast
from tests.guard.helpers import batch, consolidated, loss, net, train, weights

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
    "Adam, ε": (lambda p: torch.optim.Adam(p, lr=0.01, eps=0.1), lambda g: 0.01 / (root([x**2 for x in g], 0.999) + 0.1)),
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
"""Optimisers, and how far each goes for its gradients so far, by hand."""


def formula(form, make, reach, strength=C, steps=8, **options):
    """Train beside a guard by hand, and return the models of both."""
    model = net()
    guard = consolidated(model, strength=strength, form=form, implicit=True, **options)
    matrices, anchor, tilt = guard.matrices, guard.anchor, guard.tilt
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
                h = torch.cat([torch.as_tensor(reach(seen[n]), dtype=torch.float64).expand(own[n].shape).flatten() for n in names])
                d = torch.cat([(own[n] - anchor[n]).flatten() for n in names])
                r = torch.cat([tilt.get(n, torch.zeros_like(own[n])).flatten() for n in names])
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


@pytest.mark.parametrize("make, reach", REACHES.values(), ids=REACHES)
def test_a_step_is_the_optimisers_own_and_then_the_formula(make, reach):
    same(*formula("diagonal", make, reach))


@pytest.mark.parametrize("form", ["rotated", "kronecker", "lowrank", "dense", holdfast.Kronecker(inputs="diagonal")], ids=str)
@pytest.mark.parametrize("kind", ["SGD", "dampening"])
def test_in_other_forms_it_is_one_product_where_all_weights_go_equally_far(form, kind):
    same(*formula(form, *REACHES[kind]))


@pytest.mark.parametrize("form", ["rotated", "kronecker", "dense"])
@pytest.mark.parametrize("kind", ["Adam", "AdamW", "RMSprop"])
def test_and_a_search_where_they_do_not(form, kind, monkeypatch):
    monkeypatch.setattr("holdfast.guard.steps.implicit_pull.meeting", to_the_end)
    same(*formula(form, *REACHES[kind]), tolerance=1e-9)


def to_the_end(*given, **options):
    from holdfast.holds.implicit import meeting  # noqa: PLC0415

    return meeting(*given, **options, tolerance=1e-14, most_products=2000)


@pytest.mark.parametrize("kind", ["momentum", "Adam"])
@pytest.mark.parametrize("form", ["diagonal", "rotated"])
def test_a_hold_that_leans(kind, form, monkeypatch):
    monkeypatch.setattr("holdfast.guard.steps.implicit_pull.meeting", to_the_end)
    leaning = {"anchor": "mean", "gradient_term": True}
    found, expected = formula(form, *REACHES[kind], **leaning)
    same(found, expected, tolerance=1e-9)
