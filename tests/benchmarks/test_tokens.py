"""Tokens of several bytes stand for the text that they were made from, byte for byte."""

import math

import pytest
import torch
from torch.nn.functional import cross_entropy

from benchmarks.language import corpus, tokens
from benchmarks.language.gpt import GPT
from benchmarks.language.training import Device, bits_per_byte

TEXT = "Ein Wörterbuch, a dictionary:\n\tdef f(x):\n\t\treturn x ** 2\n\n\n" * 40


def of_bytes(text):
    return torch.tensor(list(text.encode()), dtype=torch.uint8)


def made(vocabulary=300):
    texts = {(a, b): of_bytes(f"{a} {b} " + TEXT) for a in corpus.LANGUAGES for b in corpus.PARTS}
    given = corpus.Corpus(texts)
    return given, tokens.encoded(given, vocabulary)


def test_lengths_add_up_to_the_bytes_and_single_bytes_keep_their_numbers():
    given, found = made()
    assert 256 < found.vocabulary <= 300
    for key, text in found.texts.items():
        assert int(found.lengths[text].sum()) == len(given.of(*key))
        assert len(text) < len(given.of(*key)) / 2
    newlines = corpus.Corpus({("english", "train"): of_bytes("a\n"), ("english", "validation"): of_bytes("\n")})
    assert tokens.encoded(newlines, 257).of("english", "validation").tolist() == [ord("\n")]


def test_written_and_read_it_is_the_same(tmp_path):
    _, found = made()
    corpus.write(tmp_path / "tokens.npz", found)
    again = corpus.load(tmp_path / "tokens.npz")
    assert again.digest() == found.digest()
    assert again.vocabulary == found.vocabulary
    with pytest.raises(SystemExit, match="tokens already"):
        tokens.encoded(again, 400)


def test_losses_are_shared_out_over_the_bytes_that_tokens_stand_for():
    _, found = made()
    text, context = found.of("english", "validation"), 8
    torch.manual_seed(0)
    model = GPT(16, 1, 2, context, found.vocabulary)
    window = text[: context + 1].long()
    bits = bits_per_byte(Device(torch.device("cpu")), model, window[None], found.lengths)
    with torch.no_grad():
        nats = cross_entropy(model(window[None, :-1])[0], window[1:], reduction="sum")
    assert bits == pytest.approx(nats.item() / math.log(2) / int(found.lengths[window[1:]].sum()), rel=1e-6)
