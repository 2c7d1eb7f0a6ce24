"""Embeddings with ``max_norm`` write to their tables: measured as the model computes, and put back bit for bit."""

import threading

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from anchorhold.engine.accumulator import sample_importance
from anchorhold.engine.isolation import renormed_rows_put_back
from anchorhold.engine.phi import SQUARE
from anchorhold.engine.scores import LogLikelihood
from anchorhold.errors import ModelError
from tests.engine.agreement import MEASURES, assert_agrees


class Looked(nn.Module):
    def __init__(self, table, look_up=None, head=None):
        super().__init__()
        self.table, self.head = table, head or nn.Linear(4, 3)
        self.look_up = look_up or (lambda table, tokens: table(tokens))
        with torch.no_grad():
            table.weight.mul_(3)  # all but the shortest rows are too long

    def forward(self, tokens):
        found = self.look_up(self.table, tokens)
        return self.head((found if found.ndim == 2 else found.sum(1)).tanh())


MODELS = {
    "embedding": (lambda: Looked(nn.Embedding(7, 4, max_norm=1.0)), False),
    "padding": (lambda: Looked(nn.Embedding(7, 4, padding_idx=1, max_norm=1.0)), False),
    "sum of absolute values": (lambda: Looked(nn.Embedding(7, 4, max_norm=1.0, norm_type=1.0)), False),
    "scaled by frequency": (lambda: Looked(nn.Embedding(7, 4, max_norm=1.0, scale_grad_by_freq=True)), True),
    "bag": (lambda: Looked(nn.EmbeddingBag(7, 4, max_norm=1.0)), True),
    "function": (
        lambda: Looked(nn.Embedding(7, 4), lambda table, tokens: F.embedding(tokens, table.weight, max_norm=0.7)),
        False,
    ),
}


@pytest.mark.parametrize("samples", [1, 6])
@pytest.mark.parametrize("measure", ["Fisher", "AF", "MAS"])
@pytest.mark.parametrize("model", MODELS)
def test_tables_stay_as_they_were(model, measure, samples):
    make, without_rule = MODELS[model]
    model = make().double()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    version = model.table.weight._version
    tokens = torch.randint(7, (samples, 3))
    fallback = {"table.weight"} if without_rule else set()
    assert_agrees(model, tokens, None, MEASURES[measure], fallback=fallback, batch=4)
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert model.table.weight._version == version
    assert F._no_grad_embedding_renorm_.__module__ == "torch.nn.functional"
    model(tokens)
    assert not torch.equal(model.table.weight, before["table.weight"])  # as ever


def test_put_back_after_an_error():
    class Failing(nn.Module):
        def forward(self, x):
            raise KeyError("midway")

    model = Looked(nn.Embedding(7, 4, max_norm=1.0), head=Failing())
    before = model.table.weight.detach().clone()
    with pytest.raises(KeyError, match="midway"):
        sample_importance(model, [torch.randint(7, (6, 3))], LogLikelihood(), SQUARE)
    assert torch.equal(model.table.weight, before)


def _tied():
    table = nn.Embedding(7, 4, max_norm=1.0)
    head = nn.Linear(4, 7, bias=False)
    head.weight = table.weight
    return Looked(table, head=head)


class TiedByHand(Looked):
    def __init__(self, project):
        super().__init__(nn.Embedding(7, 4, max_norm=1.0), head=nn.Identity())
        self.project = project

    def forward(self, tokens):
        return self.project(self.table(tokens).sum(1).tanh(), self.table.weight)


TIED = {
    "module": (_tied, False),
    "linear": (lambda: TiedByHand(F.linear), False),
    "matmul": (lambda: TiedByHand(lambda x, w: x @ w.T), False),
    "einsum": (lambda: TiedByHand(lambda x, w: torch.einsum("ni,oi->no", x, w)), True),
}


@pytest.mark.parametrize("samples", [1, 6])
@pytest.mark.parametrize("model", TIED)
def test_a_table_with_another_use_is_refused_while_rows_are_too_long(model, samples):
    make, without_rule = TIED[model]
    model = make().double()
    before = model.table.weight.detach().clone()
    tokens = torch.randint(7, (samples, 3))
    with pytest.raises(ModelError, match=r"shortens rows of 'table.weight'.*weight.renorm\(2, 0, max_norm\)"):
        sample_importance(model, [tokens], LogLikelihood(), SQUARE)
    assert torch.equal(model.table.weight, before)
    with torch.no_grad():
        model.table.weight.copy_(model.table.weight.renorm(2, 0, 1.0))
    # What the message says to do makes it measurable.
    assert_agrees(model, tokens, None, MEASURES["Fisher"], fallback={"table.weight"} if without_rule else set())


def test_another_thread_trains_as_ever():
    table = nn.Embedding(7, 4, max_norm=1.0)
    with torch.no_grad():
        table.weight.mul_(3)
    before = table.weight.detach().clone()
    with renormed_rows_put_back():
        thread = threading.Thread(target=lambda: table(torch.arange(7)))
        thread.start()
        thread.join()
    assert not torch.equal(table.weight, before)
