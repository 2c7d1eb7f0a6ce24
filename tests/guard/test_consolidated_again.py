"""A task that is taken in twice, without a step between, counts twice, which is told; what adds something is not."""

import pytest
import torch

import anchorhold
from tests.guard.helpers import batch, net, train

AGAIN = "consolidate\\(\\) again, without a step since the last time"


def guarded(measure):
    model = net()
    return model, anchorhold.Guard(model, measure, strength=1.0)


def total(guard):
    return sum(float(omega.sum()) for omega in guard.importance.values())


@pytest.mark.parametrize("measure", ["EWC", "EWC-empirical", "MAS", "sqrtFisher"])
def test_the_same_samples_of_the_same_model_are_told_of(measure):
    _, guard = guarded(measure)
    guard.consolidate([batch(1)])
    before = total(guard)
    with pytest.warns(anchorhold.AnchorholdWarning, match=f"{AGAIN}, from the same inputs"):
        guard.consolidate([batch(1)])
    assert total(guard) == pytest.approx(2 * before)


@pytest.mark.parametrize("measure", ["L2-growing", "magnitude"])
def test_so_is_a_measure_that_needs_none(measure):
    _, guard = guarded(measure)
    guard.consolidate()
    with pytest.warns(anchorhold.AnchorholdWarning, match=f"{AGAIN}: the same importance"):
        guard.consolidate()


def test_as_an_error_the_warning_leaves_the_guard_as_it_was():
    _, guard = guarded("EWC")
    guard.consolidate([batch(1)])
    before, tasks = total(guard), guard.tasks
    with pytest.raises(anchorhold.AnchorholdWarning, match=AGAIN):
        guard.consolidate([batch(1)])  # here warnings are errors
    assert (total(guard), guard.tasks) == (before, tasks)


def test_half_of_the_samples_are_enough_and_few_are_not():
    inputs, targets = batch(1, n=8)
    others = batch(2, n=8)
    for again, is_told in ((4, True), (3, False)):
        _, guard = guarded("EWC")
        guard.consolidate([(inputs, targets)])
        mixed = [torch.cat([inputs[:again], others[0][again:]]), torch.cat([targets[:again], others[1][again:]])]
        if is_told:
            with pytest.warns(anchorhold.AnchorholdWarning, match=AGAIN):
                guard.consolidate([tuple(mixed)])
        else:
            guard.consolidate([tuple(mixed)])


def test_other_samples_of_the_same_model_are_not():
    _, guard = guarded("EWC")
    guard.consolidate([batch(1)])
    guard.consolidate([batch(2)])
    assert guard.tasks == 2


def test_another_head_of_the_same_inputs_is_not():
    _, guard = guarded("EWC")
    guard.consolidate([batch(1)], forward=lambda model, inputs: model(inputs)[:, :2])
    guard.consolidate([batch(1)], forward=lambda model, inputs: model(inputs)[:, 1:])
    assert guard.tasks == 2


@pytest.mark.parametrize("attached", [True, False])
def test_the_same_samples_after_training_are_not(attached):
    model, guard = guarded("EWC")
    guard.consolidate([batch(1)])
    if attached:
        guard.attach(optimizer := torch.optim.SGD(model.parameters(), lr=0.1))
        train(model, optimizer)
    else:  # by training that the guard does not see
        with torch.no_grad():
            model[0].weight.add_(0.1)
    guard.consolidate([batch(1)])
    assert guard.tasks == 2


@pytest.mark.parametrize("measure", ["L2", "fine-tune"])
def test_a_total_that_does_not_grow_is_not(measure):
    _, guard = guarded(measure)
    guard.consolidate()
    guard.consolidate()
    assert guard.tasks == 2
