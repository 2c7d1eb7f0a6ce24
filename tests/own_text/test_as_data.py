"""Own text as data: batches that guards read, the Fisher information on them, and what is said of the pieces."""

import itertools

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader

import anchorhold
from anchorhold.own_text import Kind, Piece
from tests.integrations import tiny
from tests.own_text.writers import Chain, Recurrent


def test_batches_of_named_models_are_padded_on_the_right():
    text = anchorhold.write_text(tiny.gpt2(), 7, 8, prompts=[[3, 4, 5], [6]])
    batches = text.batches(3)
    assert [len(batch["input_ids"]) for batch in batches] == [3, 3, 1]
    names = ("input_ids", "attention_mask", "labels")
    rows = [row for batch in batches for row in zip(*(batch[name] for name in names), strict=True)]
    for piece, (tokens, mask, labels) in zip(text.pieces, rows, strict=True):
        end = len(piece.tokens)
        assert tokens[:end].tolist() == piece.tokens.tolist() and tokens[end:].eq(0).all()  # its padding token
        assert mask[:end].eq(1).all() and mask[end:].eq(0).all()
        assert labels.tolist() == [-100] * piece.begun + piece.written.tolist() + [-100] * (len(labels) - end)
    for piece, labels in zip(text.pieces[:3], text.batches(3, labels="all")[0]["labels"], strict=True):
        assert labels[: len(piece.tokens)].tolist() == piece.tokens.tolist()
        assert labels[len(piece.tokens) :].eq(-100).all()


def test_batches_of_other_models_are_pairs_of_tokens_and_the_next_ones():
    text = anchorhold.write_text(Recurrent(), 5, 6, prompts=[[3, 4], [1]], end=0)
    for number, (tokens, targets) in enumerate(batch for batch in text.batches(1)):
        piece = text.pieces[number]
        assert tokens[0].tolist() == piece.tokens[:-1].tolist()
        assert targets[0].tolist() == [-100] * (piece.begun - 1) + piece.written.tolist()


def test_what_was_most_probable_lies_where_the_labels_do():
    model = tiny.gpt2().double()
    text = anchorhold.write_text(model, 4, 8, prompts=[[3, 4, 5], [6]], keep_top=7)
    batch = text.batches(4, top=True)[0]
    assert batch["top_tokens"].shape == (*batch["input_ids"].shape, 7)
    counted = batch["labels"] != -100
    model.eval()
    logits = model(input_ids=batch["input_ids"], attention_mask=batch["attention_mask"]).logits
    expected = logits[:, :-1].log_softmax(-1)[counted[:, 1:]]
    kept = torch.zeros_like(expected).scatter_(
        -1, batch["top_tokens"][counted], batch["top_log_probabilities"][counted].double()
    )
    torch.testing.assert_close(kept, expected, rtol=0, atol=1e-6)
    assert set(text.batches(4)[0]) == {"input_ids", "attention_mask", "labels"}


def test_most_probable_tokens_that_are_not_there_are_refused():
    with pytest.raises(anchorhold.errors.ConfigurationError, match="keep_top"):
        anchorhold.write_text(tiny.gpt2(), 2, 4).batches(2, top=True)
    with pytest.raises(anchorhold.errors.ConfigurationError, match="pairs"):
        anchorhold.write_text(Chain(), 2, 4, start=0, keep_top=2).batches(2, top=True)


@pytest.mark.parametrize(
    ("options", "said"), [({"batch_size": 0}, "batch_size=0"), ({"labels": "none"}, "labels='none'")]
)
def test_batches_that_make_no_sense_are_refused(options, said):
    with pytest.raises(anchorhold.errors.ConfigurationError, match=said):
        anchorhold.write_text(Chain(), 2, 4, start=0).batches(**options)


@pytest.mark.parametrize("labels", ["sampled", "true", "exact"])
def test_a_guard_consolidates_with_own_text(labels):
    for model, start in ((tiny.gpt2(), None), (Recurrent(), 0)):
        text = anchorhold.write_text(model, 6, 6, start=start)
        guard = anchorhold.Guard(model, anchorhold.Fisher(labels=labels), strength=1.0)
        found = guard.consolidate(text.batches(4))
        (finding,) = found.values()
        assert finding.samples == 6
        assert sum(float(omega.sum()) for omega in guard.importance.values()) > 0


def test_the_text_itself_is_no_batches_and_is_refused():
    model = tiny.gpt2()
    text = anchorhold.write_text(model, 3, 6)
    with pytest.raises(anchorhold.errors.BatchError, match="expected batches"):
        anchorhold.Guard(model, anchorhold.Fisher(), strength=1.0).consolidate(text)


def test_rows_go_into_a_loader():
    text = anchorhold.write_text(tiny.gpt2(), 5, 6)
    loaded = list(DataLoader(text, batch_size=None))
    assert [row["input_ids"].tolist() for row in loaded] == [piece.tokens.tolist() for piece in text.pieces]
    assert [row["labels"].tolist()[1:] for row in text] == [piece.written.tolist() for piece in text.pieces]


def test_the_fisher_information_of_own_text_is_that_of_whole_texts():
    """E[(∂ log q(text)/∂θ)²] over all texts of two tokens, by hand; with the text's own labels and with drawn ones."""
    model, pieces = Chain(tokens=3), 20_000
    log_q = model.table.log_softmax(-1)
    moments = {"true": torch.zeros(2, 3, 3).double(), "sampled": torch.zeros(2, 3, 3).double()}
    for first, second, drawn in itertools.product(range(3), repeat=3):
        for labels, label in (("true", first), ("sampled", drawn)):
            scored = log_q[0, label] + log_q[first, second]
            probability = (log_q[0, first] + log_q[0, drawn] + log_q[first, second]).exp().detach()
            (gradient,) = torch.autograd.grad(scored, model.table, retain_graph=True)
            moments[labels] += probability * torch.stack([gradient**2, gradient**4])
    text = anchorhold.write_text(model, pieces, 2, start=0, batch_size=pieces)
    for labels, (square, fourth) in moments.items():
        torch.testing.assert_close(square, moments["true"][0])  # both are the Fisher information
        found = anchorhold.Fisher(labels=labels).measure(model, text.batches(pieces))["table"]
        error = ((fourth - square**2) / pieces).sqrt()
        assert float(((found - square).abs() / error).max()) < 4


def test_it_says_how_varied_it_is():
    def piece(number, tokens, begun=1):
        return Piece(number, torch.tensor(tokens), begun, torch.full((len(tokens) - begun,), -1.5))

    loop = [1] + [3, 4] * 6
    pieces = [piece(0, [1, 2]), piece(1, [1, 3, 4, 5, 6, 2]), piece(2, [1, 3, 4, 5, 6, 2]), piece(3, loop)]
    said = repr(anchorhold.OwnText(pieces, Kind(ends=(2,))))
    assert "4 pieces, 3 of them distinct" in said
    assert "23 tokens written, 5.8 a piece; 3 ended by themselves" in said
    assert "-1.50 nats a token" in said
    assert "1 empty" in said
    assert "circles: 1" in said  # of the loop's nine runs of four, two are new
    assert f"{100 * (7 / 9) / 4:.1f} % of the runs of 4" in said
    assert repr(anchorhold.OwnText([])) == "OwnText: no pieces"
    with pytest.raises(anchorhold.errors.ConfigurationError, match="no tokenizer"):
        anchorhold.OwnText(pieces).texts  # noqa: B018


def test_pieces_shorter_than_a_run_are_told_of_too():
    text = anchorhold.write_text(Chain(), 3, 2, start=0)
    assert "0.0 % of the runs" in repr(text)
    assert str(text) == repr(text)


def test_rehearsal_keeps_the_old_text_probable():
    """A few steps towards another text, with and without own text beside it."""
    torch.manual_seed(0)
    old = Chain(seed=0)
    text = anchorhold.write_text(old, 64, 12, start=0)
    new = torch.full((32, 12), 5)
    kept = {}
    for rehearse in (False, True):
        model = Chain(seed=0)
        optimizer = torch.optim.Adam(model.parameters(), lr=0.05)
        for _ in range(150):
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(model(new[:, :-1]).flatten(0, 1), new[:, 1:].flatten())
            if rehearse:
                ((tokens, targets),) = text.batches(64)
                loss = loss + 8 * nn.functional.cross_entropy(model(tokens).flatten(0, 1), targets.flatten())
            loss.backward()
            optimizer.step()
        q, now = old.table.detach().softmax(-1), model.table.detach().log_softmax(-1)
        kept[rehearse] = float((q * (q.log() - now)).sum(-1)[5])
    assert kept[True] < 0.5 * kept[False]
