"""The gradient of a task's own loss, against autograd of that loss, in float64."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import anchorhold
from anchorhold.engine.phi import IDENTITY
from tests.guard.helpers import batch, loss, net

CLOSE = {"rtol": 1e-10, "atol": 1e-12}


def random(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def check(model, measure, batches, expected, **settings):
    """Compare what a first consolidation keeps, −g, with the gradient of a loss."""
    guard = anchorhold.Guard(model, measure, anchor="mean", options=anchorhold.GuardOptions(gradient_term=True))
    guard.consolidate(batches, **settings)
    found = dict(zip(guard.parameters, torch.autograd.grad(expected, list(guard.parameters.values())), strict=True))
    for name, g in found.items():
        torch.testing.assert_close(guard.held.linear_term[name], -g, **CLOSE)
    assert any(bool(g.abs().max() > 1e-3) for g in found.values())


def test_of_a_classifier_over_several_batches():
    model = net()
    x, y = (torch.cat(parts) for parts in zip(batch(1, 5), batch(2, 9), strict=True))
    check(model, anchorhold.Fisher(), [batch(1, 5), batch(2, 9)], F.cross_entropy(model(x), y))


@pytest.mark.parametrize("measure", [anchorhold.Fisher(samples=6, labels="sampled"), anchorhold.MAS(samples=6)])
def test_of_the_samples_that_the_measure_sees(measure):
    model = net()
    x, y = batch(1, 10)
    check(model, measure, [(x[:4], y[:4]), (x[4:], y[4:])], F.cross_entropy(model(x[:6]), y[:6]))


def test_of_values_and_of_labels_that_are_each_0_or_1():
    model, x, y = net(), random(7, 4), random(7, 3, seed=1)
    check(model, anchorhold.Fisher(), [(x, y)], 0.5 * (model(x) - y).square().sum(1).mean())
    marks = (y > 0).double()
    marks[2, 1] = -100  # does not count
    terms = F.binary_cross_entropy_with_logits(model(x), marks.clamp(min=0), reduction="none")
    measure = anchorhold.Fisher(likelihood="bernoulli")
    check(model, measure, [(x, marks)], (terms * (marks >= 0)).sum() / 7)


class Tagger(nn.Module):
    """Tied, along a sequence, with a layer that no rule covers: everything that an engine may stumble over."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.words = nn.Embedding(6, 4)
        self.mix = nn.GRU(4, 4, batch_first=True)
        self.norm = nn.LayerNorm(4)
        self.double()

    def forward(self, x):
        return self.norm(self.mix(self.words(x))[0]) @ self.words.weight.T


@pytest.mark.parametrize(
    ("settings", "divisor"),
    [
        ({}, "samples"),
        ({"per": "token"}, "tokens"),
        ({"positions": "separate"}, "tokens"),
    ],
)
def test_of_positions_some_of_which_do_not_count(settings, divisor):
    model = Tagger()
    x = torch.randint(6, (5, 3), generator=torch.Generator().manual_seed(0))
    y = (x + 1) % 6
    y[0, 1:] = -100
    y[3] = -100
    total = F.cross_entropy(model(x).flatten(0, 1), y.flatten(), reduction="sum")
    count = {"samples": 4, "tokens": int((y != -100).sum())}[divisor]
    check(model, anchorhold.Fisher(labels="sampled", **settings), [(x, y)], total / count)


def test_of_a_convolution():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(1, 2, 3), nn.Flatten(), nn.Linear(8, 3)).double()
    x, y = random(6, 1, 4, 4), torch.tensor([0, 1, 2, 0, 1, 2])
    check(model, anchorhold.Fisher(), [(x, y)], F.cross_entropy(model(x), y))


def test_the_model_is_left_as_it_was_and_seen_in_eval_mode():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 5), nn.BatchNorm1d(5), nn.Dropout(0.5), nn.Linear(5, 3)).double()
    model.train()
    buffers = {name: buffer.clone() for name, buffer in model.named_buffers()}
    model(random(9, 4, seed=3))
    buffers = {name: buffer.clone() for name, buffer in model.named_buffers()}
    guard = anchorhold.Guard(
        model, anchorhold.Fisher(), anchor="mean", options=anchorhold.GuardOptions(gradient_term=True)
    )
    state = torch.get_rng_state()
    guard.consolidate([batch(0)])
    assert model.training and all(torch.equal(buffer, buffers[name]) for name, buffer in model.named_buffers())
    assert torch.equal(torch.get_rng_state(), state) and all(p.grad is None for p in model.parameters())
    expected = torch.autograd.grad(loss(model.eval(), batch(0)), list(model.parameters()))
    for name, g in zip(guard.parameters, expected, strict=True):
        torch.testing.assert_close(guard.held.linear_term[name], -g, **CLOSE)


def test_batches_that_can_be_gone_through_once_will_do():
    model = net()
    check(model, anchorhold.Fisher(), iter([batch(1)]), loss(model, batch(1)))


def test_a_plain_mean_leaves_what_it_is_given_alone():
    phi, u = IDENTITY, random(3, 2)
    kept = u.clone()
    phi.add_(phi(u), u)
    assert torch.equal(u, kept) and torch.equal(phi.inverse(u), u)
    assert torch.equal(phi.sum(u, (0,)), u.sum(0))
