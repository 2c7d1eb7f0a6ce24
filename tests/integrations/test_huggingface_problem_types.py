"""Classifiers that say, or are told by their first labels, what their problem is: a Fisher by brute force each."""

import pytest
import torch
from transformers import BertConfig, BertForSequenceClassification

import anchorhold
from anchorhold.errors import BatchError
from tests import oracles
from tests.integrations.tiny import TOKENS

LABELS = {
    "regression": torch.tensor([[0.0, 1.0], [1.0, 0.0], [1.0, 1.0]]),
    "multi_label_classification": torch.tensor([[0.0, 1.0], [1.0, 0.0], [0.0, 1.0]]),
    "single_label_classification": torch.tensor([0, 1, 1]),
}
ORACLES = {
    "regression": oracles.every_value,
    "multi_label_classification": oracles.every_set_of_labels,
    "single_label_classification": oracles.every_label,
}


def bert(labels=2, problem=None):
    torch.manual_seed(0)
    config = BertConfig(
        vocab_size=TOKENS,
        hidden_size=8,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=12,
        max_position_embeddings=16,
        num_labels=labels,
        problem_type=problem,
        attn_implementation="eager",
    )
    return BertForSequenceClassification(config).double().eval()


def batch(labels):
    torch.manual_seed(1)
    return {"input_ids": torch.randint(3, TOKENS, (3, 5)), "labels": labels}


def expected(model, ids, oracle):
    data = oracles.one_by_one(ids)
    return oracles.importance(model, data, oracle, torch.square, lambda net, ids: net(input_ids=ids).logits)


def agrees(model, given, oracle):
    found = anchorhold.Fisher().measure(model, [given])
    for name, value in expected(model, given["input_ids"], oracle).items():
        if value.norm() > 1e-12:  # the keys' bias moves no attention, but for rounding
            assert oracles.relative_error(found[name], value) < 1e-10, name


@pytest.mark.parametrize("problem", LABELS)
def test_the_problem_type_says_what_the_outputs_are(problem):
    """Its labels alone would be unclear, or mean something else."""
    agrees(bert(problem=problem), batch(LABELS[problem]), ORACLES[problem])


@pytest.mark.parametrize("problem", LABELS)
def test_the_first_labelled_forward_pass_says_it(problem):
    labels = torch.tensor([0.5, 0.2, 1.0]) if problem == "regression" else LABELS[problem]
    model = bert(labels=1 if problem == "regression" else 2)
    guard = anchorhold.Guard(model, anchorhold.Fisher())
    assert model.config.problem_type is None
    given = batch(labels.double() if labels.is_floating_point() else labels)
    model(**given)
    assert model.config.problem_type == problem
    guard.consolidate([given])
    for name, value in expected(model, given["input_ids"], ORACLES[problem]).items():
        if value.norm() > 1e-12:
            assert oracles.relative_error(guard.importance[name], value) < 1e-10, name


def test_without_a_problem_type_it_is_what_the_model_would_set_by_these_labels():
    agrees(bert(), batch(torch.tensor([0, 1, 1])), oracles.every_label)
    agrees(bert(), batch(torch.tensor([[1.0, 1.0], [0.0, 0.0], [0.0, 1.0]])), oracles.every_set_of_labels)
    agrees(bert(), batch(LABELS["multi_label_classification"]), oracles.every_set_of_labels)
    agrees(bert(labels=1), batch(torch.tensor([1.0, 3.5, 0.0])), oracles.every_value)
    agrees(bert(labels=1), batch(torch.tensor([1.0, 1.0, 0.0])), oracles.every_value)
    with pytest.raises(
        BatchError, match=r"A target of 3.5.*from the model's problem type 'multi_label_classification'"
    ):
        anchorhold.Fisher().measure(bert(), [batch(torch.tensor([[1.0, 3.5], [0.0, 0.0], [0.0, 1.0]]))])


def test_mas_takes_the_sigmoids_of_several_labels():
    model, given = bert(problem="multi_label_classification"), batch(LABELS["multi_label_classification"])
    found = anchorhold.MAS().measure(model, [given])
    data = oracles.one_by_one(given["input_ids"])
    by_hand = oracles.importance(
        model, data, oracles.squared_sigmoids, torch.abs, lambda net, ids: net(input_ids=ids).logits
    )
    assert oracles.relative_error(found["classifier.weight"], by_hand["classifier.weight"]) < 1e-10


def test_labels_beside_the_inputs_are_of_a_loss_of_ones_own():
    """A pair is never given to the model's own loss, which would take one output for a regression."""
    ids = batch(None)["input_ids"]
    guard = anchorhold.Guard(bert(labels=1), anchorhold.Fisher())
    found = guard.consolidate([({"input_ids": ids}, torch.tensor([0, 1, 1]))])["EWC"]
    assert found.outputs.startswith("bernoulli")
