"""Models that mix the samples of a batch, in either direction: no per-sample gradient exists, and they are refused."""

import pytest
import torch
from torch import nn

from anchorhold.engine.accumulator import sample_importance
from anchorhold.engine.phi import SQUARE
from anchorhold.engine.scores import LogLikelihood
from anchorhold.errors import ModelError
from tests.engine.agreement import MEASURES, assert_agrees


def _attention(x, *, causal):
    scores = x @ x.T
    if causal:
        scores = scores.masked_fill(torch.ones_like(scores).triu(1).bool(), -torch.inf)
    return scores.softmax(1) @ x


MIXTURES = {
    "cumsum": lambda x: x.cumsum(0),
    "cumsum from the end": lambda x: x.flip(0).cumsum(0).flip(0),
    "cummax": lambda x: x.cummax(0).values,
    "roll": lambda x: x + x.roll(1, 0),
    "roll by two": lambda x: x + x.roll(2, 0),
    "roll by two, back": lambda x: x + x.roll(-2, 0),
    "attention": lambda x: _attention(x, causal=False),
    "causal attention": lambda x: _attention(x, causal=True),
    "attention from the end": lambda x: _attention(x.flip(0), causal=True).flip(0),
    "softmax": lambda x: x.softmax(0),
    "mean": lambda x: x - x.mean(0),
    "largest": lambda x: x / x.abs().max(),
    "three before": lambda x: torch.cat([x[:3], x[3:] + x[:-3]]) if len(x) > 3 else x,
    "three ahead": lambda x: torch.cat([x[:-3] + x[3:], x[-3:]]) if len(x) > 3 else x,
}


class Mixing(nn.Module):
    def __init__(self, mix):
        super().__init__()
        self.mix, self.body, self.head = mix, nn.Linear(4, 4), nn.Linear(4, 3)

    def forward(self, x):
        return self.head(self.mix(self.body(x)))


class MixingWithoutRule(nn.Module):
    def __init__(self, mix):
        super().__init__()
        self.mix, self.weight = mix, nn.Parameter(torch.randn(4, 3))

    def forward(self, x):
        return torch.einsum("ni,io->no", self.mix(x), self.weight)


@pytest.mark.parametrize("kind", [Mixing, MixingWithoutRule])
@pytest.mark.parametrize("mixture", MIXTURES)
def test_mixtures_are_refused(mixture, kind):
    with pytest.raises(ModelError, match="change when other samples are in the batch"):
        sample_importance(kind(MIXTURES[mixture]), [torch.randn(8, 4)], LogLikelihood(), SQUARE)


class Recurrent(nn.Module):
    def __init__(self, cell):
        super().__init__()
        self.cell, self.head = cell, nn.LazyLinear(3)

    def forward(self, x):
        return self.head(self.cell(x)[0][:, -1])


@pytest.mark.parametrize("bidirectional", [False, True])
@pytest.mark.parametrize("kind", [nn.LSTM, nn.GRU, nn.RNN])
def test_recurrent_layers_that_run_along_the_batch(kind, bidirectional):
    x = torch.randn(6, 5, 4).double()
    along_the_batch = Recurrent(kind(4, 4, bidirectional=bidirectional)).double()
    along_positions = Recurrent(kind(4, 4, bidirectional=bidirectional, batch_first=True)).double()
    for model in (along_the_batch, along_positions):
        model(x)
    with pytest.raises(ModelError, match=rf"cell \({kind.__name__}\) was made without batch_first=True"):
        sample_importance(along_the_batch, [x], LogLikelihood(), SQUARE)
    without_rule = {f"cell.{name}" for name, _ in along_positions.cell.named_parameters()}
    assert_agrees(along_positions, x, None, MEASURES["Fisher"], fallback=without_rule)


def test_no_word_of_batch_first_where_no_layer_has_it():
    with pytest.raises(ModelError) as raised:
        sample_importance(Mixing(MIXTURES["cumsum"]), [torch.randn(8, 4)], LogLikelihood(), SQUARE)
    assert "batch_first" not in str(raised.value)
