"""The ratio of a held step to an unprotected one is the forms' own arithmetic, and a large one is told of once."""

import warnings
from collections import UserDict
from types import SimpleNamespace

import pytest
import torch
from torch import nn

import anchorhold
from anchorhold import Guard
from anchorhold.errors import AnchorholdWarning, ConfigurationError
from anchorhold.forms import Kronecker, Rotated
from anchorhold.guard import costs

M, N, ROWS = 300, 200, 32


def linear(form, rows=ROWS, layer=None, x=None, **options):
    """Return a guard of one layer that was measured with batches of some rows, and a step of another task."""
    torch.manual_seed(0)
    layer = nn.Linear(N, M, bias=False) if layer is None else layer
    x = torch.randn(rows, N) if x is None else x
    guard = Guard(layer, "EWC", strength=1e-3, form=form, from_scratch=True, **options)
    guard.consolidate([x, x])
    optimizer = torch.optim.Adam(layer.parameters())
    guard.attach(optimizer)

    def step():
        optimizer.zero_grad()
        layer(x).square().sum().backward()
        optimizer.step()

    return guard, step


@pytest.fixture
def told_of_small_ones(monkeypatch):
    """Let a small layer's pull, and the rows of the batches that it is measured with, count."""
    monkeypatch.setattr("anchorhold.guard.monitors.pull_cost.LEAST_PULL", 10**7)
    monkeypatch.setattr("anchorhold.guard.monitors.pull_cost.LEAST_ROWS", 1)


@pytest.mark.parametrize(("form", "flops"), [("rotated", 4 * M * N * (M + N)), ("kronecker", 2 * M * N * (M + N))])
def test_the_ratio_is_that_of_the_products(form, flops):
    guard, _ = linear(form)
    expected = 1 + (flops + (2 * M * N if form == "rotated" else 0)) / (6 * ROWS * M * N)
    assert guard.cost().ratio == pytest.approx(expected)
    assert guard.cost(rows=10 * ROWS).ratio == pytest.approx(1 + (expected - 1) / 10)
    assert guard.cost().blocks[0].rows == ROWS


def test_before_a_task_was_measured_it_takes_the_rows():
    guard = Guard(nn.Linear(N, M, bias=False), "EWC", form="kronecker")
    assert guard.cost().ratio is None and "unprotected" not in repr(guard.cost())
    assert guard.cost(rows=ROWS).ratio == pytest.approx(1 + (M + N) / (3 * ROWS))
    with pytest.raises(ConfigurationError, match="rows"):
        guard.cost(rows=0)


def test_each_layers_rows_are_those_that_it_has_seen():
    """A convolution sees one at each position; of a batch that is cut short by a limit, all count."""
    conv = nn.Sequential(nn.Conv2d(2, 3, 3), nn.Flatten(), nn.Linear(3 * 16, 4))
    guard = Guard(conv, anchorhold.Fisher(samples=6), form="kronecker", strength=1.0, from_scratch=True)
    guard.consolidate([torch.randn(8, 2, 6, 6)])
    assert {block.name: block.rows for block in guard.cost().blocks} == {"0.weight": 8 * 16, "2.weight": 8}


def test_a_batch_that_is_a_mapping_or_has_packed_rows_is_counted():
    class Named(nn.Module):
        def __init__(self):
            super().__init__()
            self.embedding, self.head = nn.Embedding(9, 4), nn.Linear(4, 9, bias=False)

        def forward(self, input_ids, labels=None, position_ids=None):
            return SimpleNamespace(logits=self.head(self.embedding(input_ids)))

    text = torch.randint(9, (3, 8))
    packed = torch.arange(4).repeat(3, 2)
    for more in ({}, {"position_ids": packed}):
        guard = Guard(Named(), "EWC", form="kronecker", strength=1.0, from_scratch=True)
        guard.consolidate([UserDict(input_ids=text, labels=text, **more)])
        head = next(block for block in guard.cost().blocks if block.name == "head.weight")
        assert head.rows == 3 * 8


def test_frozen_layers_and_lookups_are_counted_as_what_they_are():
    model = nn.Sequential(nn.Embedding(50, 6), nn.Linear(6, 5, bias=False), nn.Linear(5, 7, bias=False))
    model[1].requires_grad_(False)
    guard = Guard(model, "EWC", form="kronecker", protect="2.*")
    assert guard.cost(rows=4).step == 4 * (2 * 30 + 3 * 35)


@pytest.mark.usefixtures("told_of_small_ones")
def test_a_large_ratio_is_told_of_once_and_names_what_takes_less():
    guard, step = linear("rotated")
    more = (
        rf"take 11\.4 times .*{ROWS} rows.*form='kronecker' \(6\.21 times\).*form='diagonal' \(1\.01 times\).* 334 rows"
    )
    with pytest.warns(AnchorholdWarning, match=more):
        step()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        step()
        guard.consolidate([torch.randn(ROWS, N)])
        step()


def test_small_batches_that_importance_is_measured_in_say_nothing_of_those_of_training(monkeypatch):
    monkeypatch.setattr("anchorhold.guard.monitors.pull_cost.LEAST_PULL", 10**7)
    guard, step = linear("rotated", rows=1)
    assert guard.cost().ratio > 300 and guard.cost(rows=2048).ratio < 2
    step()  # where a warning is an error
    monkeypatch.setattr("anchorhold.guard.monitors.pull_cost.LEAST_ROWS", 256)
    guard, step = linear("rotated", rows=1)
    with pytest.warns(AnchorholdWarning, match=r"take 2\.3 times as long .* at 256 rows a batch .*334 rows"):
        step()


@pytest.mark.usefixtures("told_of_small_ones")
def test_what_is_named_as_less_is_less():
    for form, rows in ((Kronecker(), ROWS), (Rotated(), 340), ("diagonal", 1)):
        guard, step = linear(form, rows)
        with warnings.catch_warnings(record=True) as told:
            warnings.simplefilter("always")
            step()
        assert ("form='kronecker'" in str([each.message for each in told])) is False
        assert bool(told) == (form == Kronecker())
    assert guard.cost().ratio is None


def test_small_pulls_are_not_told_of():
    guard, step = linear("rotated")
    assert guard.cost().ratio > 2 and guard.cost().multiplications < costs.LEAST_PULL
    assert "unprotected" not in repr(guard.cost())
    step()  # where a warning is an error
