"""Of a schedule-free optimizer, what is measured and held are the weights that are evaluated."""

import pytest
import schedulefree
import torch

import anchorhold
from tests.guard.helpers import batch, net, train, weights

KINDS = [schedulefree.AdamWScheduleFree, schedulefree.SGDScheduleFree]


@pytest.mark.parametrize("kind", KINDS)
def test_the_anchor_is_what_is_evaluated_and_training_goes_on_where_it_was(kind):
    model = net()
    optimizer = kind(model.parameters(), lr=0.1)
    guard = anchorhold.Guard(model, anchorhold.Fisher(), strength=0.1)
    guard.attach(optimizer)
    optimizer.train()
    train(model, optimizer, steps=5)
    training = weights(model)
    guard.consolidate([batch(0)])
    assert all(torch.equal(weights(model)[name], value) for name, value in training.items())
    assert all(group["train_mode"] for group in optimizer.param_groups)
    train(model, optimizer, steps=2)  # it still steps
    anchor, importance = guard.anchor, guard.importance
    again = net()
    optimizer = kind(again.parameters(), lr=0.1)
    optimizer.train()
    train(again, optimizer, steps=5)
    optimizer.eval()
    expected = anchorhold.Fisher().measure(again, [batch(0)])
    for name, value in weights(again).items():
        assert not torch.equal(training[name], value)
        torch.testing.assert_close(anchor[name], value)
        torch.testing.assert_close(importance[name], expected[name])


def trained():
    model = net()
    optimizer = schedulefree.AdamWScheduleFree(model.parameters(), lr=0.1)
    guard = anchorhold.Guard(model, anchorhold.Fisher())
    guard.attach(optimizer)
    optimizer.train()
    train(model, optimizer)
    return model, optimizer, guard


def test_a_consolidation_that_fails_leaves_the_weights_in_training():
    model, optimizer, guard = trained()
    training = weights(model)
    with pytest.raises(anchorhold.errors.BatchError):
        guard.consolidate()
    assert all(torch.equal(weights(model)[name], value) for name, value in training.items())
    assert optimizer.param_groups[0]["train_mode"]


def test_one_that_is_in_its_eval_mode_is_left_there():
    model, optimizer, guard = trained()
    optimizer.eval()
    evaluated = weights(model)
    guard.consolidate([batch(0)])
    assert not optimizer.param_groups[0]["train_mode"]
    assert all(torch.equal(guard.anchor[name], value) for name, value in evaluated.items())
