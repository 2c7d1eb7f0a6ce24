"""Losses by document, against logits in full, and their standard errors, against many draws of documents."""

import statistics

import numpy as np
import pytest
import torch
from torch.testing import assert_close

from studies.pretrained import losses
from studies.pretrained.losses import DocumentLosses
from tests.studies.pretrained.tiny import KINDS, model, rows


def by_hand(network, tokens):
    """Return each document's loss from its own logits, in float64."""
    found = []
    for row in tokens.long():
        some = row[row >= 0]
        logits = network.double()(input_ids=some[None]).logits[0, :-1].log_softmax(-1)
        found.append(-logits.gather(1, some[1:, None]).sum().item())
    return found


def test_losses_are_those_of_the_logits(monkeypatch):
    monkeypatch.setattr(losses, "TOGETHER", 7)
    given = rows(5, 12, 3)
    found = losses.document_losses(model(), given, together=2)
    assert found.nats == pytest.approx(by_hand(model(), given.tokens), rel=1e-5)
    assert found.tokens == [5, 12, 12, 12, 12]


def test_gradients_are_those_of_the_logits(monkeypatch):
    monkeypatch.setattr(losses, "TOGETHER", 7)
    tokens = rows(3, 12, 3).tokens.clamp(min=0)
    ours, theirs = model(), model()
    losses.token_losses(ours, tokens).mean().backward()
    logits = theirs(input_ids=tokens).logits[:, :-1].flatten(0, 1)
    torch.nn.functional.cross_entropy(logits, tokens[:, 1:].flatten().long()).backward()
    for (name, weight), other in zip(ours.named_parameters(), theirs.parameters(), strict=True):
        assert_close(weight.grad, other.grad, rtol=1e-4, atol=1e-6, msg=name)


def test_the_divergence_is_that_of_the_distributions(monkeypatch):
    monkeypatch.setattr(losses, "TOGETHER", 7)
    tokens = rows(3, 12, 3).tokens.clamp(min=0)
    old, new = model(), model()
    with torch.no_grad():
        for weight in new.parameters():
            weight.add_(0.05 * torch.randn_like(weight))
    before, after = (each(input_ids=tokens).logits[:, :-1].log_softmax(-1) for each in (old, new))
    expected = (before.exp() * (before - after)).sum(-1).mean()
    assert_close(losses.divergence(new, old, tokens), expected, rtol=1e-4, atol=1e-6)
    assert expected > 1e-3
    assert losses.divergence(old, old, tokens).abs() < 1e-6


def test_the_standard_error_is_the_spread_over_draws_of_documents():
    chance = np.random.default_rng(0)
    values, errors, changes, change_errors = [], [], [], []
    for _ in range(400):
        counts = chance.integers(50, 500, 60)
        hard = chance.normal(3.0, 0.5, 60)
        before = DocumentLosses((counts * hard).tolist(), counts.tolist(), (4 * counts).tolist())
        grown = counts * (hard + 0.1 + chance.normal(0.0, 0.02, 60))
        after = DocumentLosses(grown.tolist(), counts.tolist(), (4 * counts).tolist())
        value, error = before.per_token()
        change, change_error = after.change(before)
        values.append(value), errors.append(error), changes.append(change), change_errors.append(change_error)
    assert statistics.mean(errors) == pytest.approx(statistics.stdev(values), rel=0.12)
    assert statistics.mean(change_errors) == pytest.approx(statistics.stdev(changes), rel=0.12)
    assert statistics.mean(changes) == pytest.approx(0.1, abs=1e-3)
    # Paired with itself a document tells far more than two draws would.
    assert statistics.mean(change_errors) < 0.1 * statistics.mean(errors)


def test_bits_a_byte_are_nats_over_bytes():
    found = DocumentLosses([10.0, 30.0], [5, 10], [20, 40])
    assert found.per_token()[0] == pytest.approx(40 / 15)
    assert found.per_byte()[0] == pytest.approx(40 / 60 / np.log(2))


def test_tokens_are_of_the_vocabulary():
    assert int(rows(5, 12, 3).tokens.max()) < KINDS
