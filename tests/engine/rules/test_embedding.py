"""Embedding tables."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from tests.engine.agreement import MEASURES, assert_agrees


class Bag(nn.Module):
    def __init__(self, layout: str, **options) -> None:
        super().__init__()
        self.table = nn.Embedding(5, 3, **options)
        self.head = nn.Linear(3, 3)
        self.layout = layout

    def forward(self, idx):
        n, t = idx.shape
        if self.layout == "sequence first":
            x = self.table(idx.T).transpose(0, 1)
        elif self.layout == "merged":
            x = self.table(idx.reshape(-1)).view(n, t, -1)
        elif self.layout == "more dimensions":
            x = self.table(idx.unsqueeze(1).expand(n, 2, t)).sum(1)
        else:
            x = self.table(idx)
        return self.head(x.tanh().sum(1))


@pytest.mark.parametrize("measure", ["Fisher", "AF", "MAS"])
@pytest.mark.parametrize("options", [{}, {"padding_idx": 1}, {"padding_idx": -1}, {"sparse": True}], ids=str)
@pytest.mark.parametrize("layout", ["batch first", "sequence first", "merged", "more dimensions"])
def test_repeated_and_padded_indices(layout, options, measure):
    idx = torch.tensor([[1, 1, 4, 0], [2, 3, 3, 3], [4, 1, 0, 2], [0, 0, 0, 0]])
    model = Bag(layout, **options).double()
    if "padding_idx" in options:
        nn.init.normal_(model.table.weight)
    assert_agrees(model, idx, None, MEASURES[measure])


def test_gradient_scaled_by_frequency_is_left_to_autograd():
    model = Bag("batch first", scale_grad_by_freq=True).double()
    assert_agrees(model, torch.tensor([[1, 1, 4], [2, 3, 3]]), None, MEASURES["Fisher"], fallback={"table.weight"})


class Positions(nn.Module):
    """Positions that are looked up once for all samples, in one of the ways that people write it."""

    def __init__(self, form: str) -> None:
        super().__init__()
        self.tokens = nn.Embedding(5, 3)
        self.positions = nn.Embedding(6, 3)
        self.norm = nn.LayerNorm(3)
        self.head = nn.Linear(3, 4)
        self.form = form

    def forward(self, idx):
        x, t = self.tokens(idx), torch.arange(idx.shape[1])
        if self.form == "[T]":
            x = x + self.positions(t)
        elif self.form == "[1, T], first":
            x = self.positions(t.unsqueeze(0)) + x
        elif self.form == "[T, 1], sequence first":
            x = (x.transpose(0, 1) + self.positions(t.unsqueeze(1))).transpose(0, 1)
        elif self.form == "[N, T]":
            x = x + self.positions(t.expand_as(idx))
        elif self.form == "in place":
            x = x * 1.0
            x += self.positions(t)
        elif self.form == "twice":
            p = self.positions(t)
            x = (x + p).tanh() + p
        elif self.form == "scaled":
            x = torch.add(x, self.positions(t), alpha=0.5)
        elif self.form == "normalised":
            x = x + self.norm(self.positions(t))
        elif self.form == "added and multiplied":
            p = self.positions(t)
            x = (x + p) * p
        return self.head(x.tanh().sum(1))


@pytest.mark.parametrize("measure", ["Fisher", "MAS"])
@pytest.mark.parametrize("length", [1, 2, 4])
@pytest.mark.parametrize(
    ("form", "fallback"),
    [
        ("[T]", set()),
        ("[1, T], first", set()),
        ("[T, 1], sequence first", set()),
        ("[N, T]", set()),
        ("in place", set()),
        ("twice", set()),
        ("scaled", {"positions.weight"}),
        ("normalised", {"positions.weight"}),
        ("added and multiplied", {"positions.weight"}),
    ],
)
def test_positions(form, fallback, length, measure):
    # Four samples: as many as positions in one of the cases.
    model = Positions(form).double()
    nn.init.uniform_(model.norm.weight, 0.5, 2.0)
    assert_agrees(model, torch.randint(5, (4, length)), None, MEASURES[measure], fallback=fallback)


class TiedHead(nn.Module):
    """A language model's embedding that is its head too, as a layer or by a transpose."""

    def __init__(self, *, transpose: bool) -> None:
        super().__init__()
        self.table = nn.Embedding(5, 3, padding_idx=0)
        nn.init.normal_(self.table.weight)
        self.transpose = transpose

    def forward(self, idx):
        x = self.table(idx).cumsum(1).tanh().mean(1)
        return x @ self.table.weight.T if self.transpose else F.linear(x, self.table.weight)


@pytest.mark.parametrize("measure", ["Fisher", "AF", "MAS"])
@pytest.mark.parametrize("transpose", [True, False])
def test_tied_head(transpose, measure):
    model = TiedHead(transpose=transpose).double()
    assert_agrees(model, torch.randint(5, (3, 4)), None, MEASURES[measure])
