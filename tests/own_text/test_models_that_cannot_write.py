"""Models and settings that cannot give text are refused before the first piece."""

import math

import pytest
import torch
from torch import nn
from transformers import GPT2Config, GPT2ForSequenceClassification, T5Config, T5ForConditionalGeneration

import anchorhold
from tests.integrations import tiny
from tests.own_text.writers import TOKENS, Chain, Recurrent


class Both(nn.Module):
    """A recurrent network that reads in both directions, as taggers do."""

    def __init__(self):
        super().__init__()
        self.tokens = nn.Embedding(TOKENS, 4)
        self.body = nn.LSTM(4, 4, batch_first=True, bidirectional=True)
        self.head = nn.Linear(8, TOKENS)

    def forward(self, tokens):
        return self.head(self.body(self.tokens(tokens))[0])


def t5():
    sizes = {"d_model": 8, "d_kv": 4, "d_ff": 8, "num_layers": 1, "num_heads": 2}
    return T5ForConditionalGeneration(T5Config(vocab_size=TOKENS, **sizes))


def classifier():
    return GPT2ForSequenceClassification(GPT2Config(vocab_size=7, n_positions=16, n_embd=8, n_layer=1, n_head=2))


class Pooled(nn.Module):
    def forward(self, tokens):
        return torch.zeros(len(tokens), TOKENS)


@pytest.mark.daily
@pytest.mark.parametrize(
    ("model", "said"),
    [
        (tiny.bert_tagger(), "cannot generate"),
        (classifier(), "cannot generate"),
        (t5(), "an encoder and a decoder"),
        (Both(), "looks ahead"),
        (nn.Linear(4, 3), r"Linear cannot read a token \(RuntimeError: .*logits \[N, T, V\]"),
        (Pooled(), r"returned \(1, 6\).*\[N, T, V\]"),
        (nn.Embedding(6, 4, device="meta"), "without values"),
        ("gpt2", "type str"),
    ],
    ids=lambda given: type(given).__name__ if isinstance(given, nn.Module) else "",
)
def test_a_model_that_cannot_write_is_refused(model, said):
    with pytest.raises(anchorhold.errors.ModelError, match=said):
        anchorhold.write_text(model, 2, 6, start=0)


@pytest.mark.parametrize("make", [tiny.gpt2, tiny.llama])
def test_prompts_beyond_the_context_are_refused(make):
    model = make()  # which reads 16
    assert len(anchorhold.write_text(model, 1, 15)) == 1
    with pytest.raises(anchorhold.errors.ConfigurationError, match=r"17 tokens.*at most 16\. Write at most length=15"):
        anchorhold.write_text(model, 1, 16)
    with pytest.raises(anchorhold.errors.ConfigurationError, match=r"prompt 1 with its 20 tokens.*shorter prompts"):
        anchorhold.write_text(model, length=4, prompts=[[3], [3] * 20])


def test_a_context_that_nobody_told_of_is_found_before_writing():
    model = Chain(context=8)
    assert len(anchorhold.write_text(model, 1, 7, start=0)) == 1
    with pytest.raises(anchorhold.errors.ModelError, match=r"failed to read 9 tokens \(IndexError"):
        anchorhold.write_text(model, 100, 8, start=0)
    assert max(model.calls)[0] <= 2  # and no piece had been begun


@pytest.mark.parametrize("bad", [math.nan, math.inf])
@pytest.mark.parametrize("batch_size", [1, 8])
def test_logits_that_are_not_finite_are_refused(bad, batch_size):
    model = Chain()
    with torch.no_grad():
        model.table[3, 1] = bad
    with pytest.raises(anchorhold.errors.NotFiniteError, match=r"token \d+ of piece \d"):
        anchorhold.write_text(model, 8, 30, start=0, batch_size=batch_size)


def test_logits_that_forbid_tokens_are_fine_unless_they_forbid_all():
    model = Chain()
    with torch.no_grad():
        model.table[:, 3] = -math.inf
    text = anchorhold.write_text(model, 8, 30, start=0)
    assert not any(bool((piece.tokens == 3).any()) for piece in text.pieces)
    with torch.no_grad():
        model.table[1] = -math.inf
    with pytest.raises(anchorhold.errors.NotFiniteError):
        anchorhold.write_text(model, 8, 30, start=0)


def test_what_was_stored_before_an_error_is_still_there(tmp_path):
    model = Recurrent()

    def broken(done, wanted):
        model.head.bias.data.fill_(math.nan)

    with pytest.raises(anchorhold.errors.NotFiniteError):
        anchorhold.write_text(model, 8, 5, start=0, batch_size=2, store=tmp_path, progress=broken)
    with pytest.warns(anchorhold.AnchorholdWarning, match="2 of 8"):
        assert len(anchorhold.OwnText.load(tmp_path)) == 2


@pytest.mark.daily
@pytest.mark.parametrize(
    ("name", "value"),
    [
        *(("temperature", bad) for bad in (0, 0.0, -1.0, math.nan, math.inf, "1", True)),
        *(("top_p", bad) for bad in (0.0, -0.1, 1.1, math.nan)),
        *(("top_k", bad) for bad in (-1, 1.5)),
        *(("keep_top", bad) for bad in (-1, 1.5, 7)),
        *(("pieces", bad) for bad in (0, -3, 1.5, True)),
        *(("length", bad) for bad in (0, -3, 2.5)),
        *(("batch_size", bad) for bad in (0, -1, 2.0)),
        *(("seed", bad) for bad in (0.5, "a", None)),
    ],
)
def test_settings_that_make_no_sense_are_refused(name, value):
    with pytest.raises(anchorhold.errors.ConfigurationError, match=f"{name}={value!r}"):
        anchorhold.write_text(Chain(), **{"pieces": 2, "length": 3, "start": 0, name: value})


def test_a_model_of_one_layer_without_parameters_writes():
    class Uniform(nn.Module):
        def forward(self, tokens):
            return torch.zeros(*tokens.shape, 4)

    text = anchorhold.write_text(Uniform(), 50, 4, start=0)
    assert torch.cat([piece.written for piece in text.pieces]).unique().tolist() == [0, 1, 2, 3]


def test_a_cache_that_gives_something_else_is_not_used():
    class Forgetful(type(tiny.gpt2())):
        def forward(self, input_ids, past_key_values=None, use_cache=None, **more):
            return super().forward(input_ids=input_ids, use_cache=use_cache, return_dict=True)  # whatever the past was

    torch.manual_seed(0)
    model = Forgetful(tiny.gpt2().config).double()
    with pytest.warns(anchorhold.AnchorholdWarning, match="gives other logits"):
        text = anchorhold.write_text(model, 4, 6)
    whole = anchorhold.write_text(model, 4, 6, cache=False)
    assert [p.tokens.tolist() for p in text.pieces] == [p.tokens.tolist() for p in whole.pieces]
