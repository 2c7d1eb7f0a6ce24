"""Running statistics that move while weights are held are told once, and only where that is so."""

import warnings

import pytest
import torch
from torch import nn

import anchorhold
from tests.guard.batch_norm.networks import dense, statistics
from tests.guard.helpers import batch, consolidated, train


def attached(model, guard, **options):
    guard.attach(optimizer := torch.optim.SGD(model.parameters(), lr=0.01), **options)
    return optimizer


def told_of(model, optimizer):
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        train(model, optimizer)
    return [str(one.message) for one in told]


def test_statistics_that_move_are_told_once_at_the_first_step():
    model = dense().train()
    guard = consolidated(model)
    (told,) = told_of(model, optimizer := attached(model, guard))
    assert told.startswith("Batch norms in training mode: '1'.")
    assert "batch_norm='freeze'" in told and "batch_norm='fold'" in told
    guard.consolidate([batch(9)])
    assert told_of(model, optimizer) == []


def test_before_the_first_consolidation_nothing_is_told():
    model = dense().train()
    guard = anchorhold.Guard(model, anchorhold.Fisher(), from_scratch=True)
    assert told_of(model, attached(model, guard)) == []


def test_several_layers_are_counted():
    model = nn.Sequential(dense(), nn.BatchNorm1d(3).double(), nn.BatchNorm1d(3, affine=False).double()).train()
    (told,) = told_of(model, attached(model, consolidated(model)))
    assert told.startswith("Batch norms in training mode: '0.1' and 2 more.")


@pytest.mark.parametrize(
    "options", [{"strength": 0.0}, {"batch_norm": "freeze"}, {"batch_norm": "fold"}, {"measure": anchorhold.FineTune()}]
)
def test_nothing_is_told_where_nothing_is_held_or_something_is_done(options):
    model = dense().train()
    assert told_of(model, attached(model, consolidated(model, **options))) == []


def test_nor_where_somebody_else_adds_the_penalty():
    model = dense().train()
    assert told_of(model, attached(model, consolidated(model), hold=False)) == []


@pytest.mark.parametrize("still", ["eval", "momentum", "batch statistics", "unprotected"])
def test_nor_where_no_statistics_of_what_is_held_move(still):
    model = dense().train()
    protect = ["0.*", "3.*"] if still == "unprotected" else None
    guard = consolidated(model, protect=protect)
    if still == "eval":
        model[1].eval()
    elif still == "momentum":
        model[1].momentum = 0.0
    elif still == "batch statistics":
        model[1].running_mean = model[1].running_var = None
    guard.refresh()
    assert told_of(model, attached(model, guard)) == []


def test_a_frozen_layer_whose_mode_was_set_past_train_is_put_back_and_told():
    model = dense().train()
    guard = consolidated(model, batch_norm="freeze")
    optimizer = attached(model, guard)
    model[1].training = True
    (told,) = told_of(model, optimizer)
    assert told.startswith("The batch norm '1' was to keep its running statistics")
    before = statistics(model)
    assert told_of(model, optimizer) == []
    assert all(torch.equal(value, before[name]) for name, value in statistics(model).items())
