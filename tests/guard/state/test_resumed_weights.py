"""A state of the middle of a task belongs to the weights of then: a model that has others is told of."""

import copy
import json
from contextlib import nullcontext

import pytest
import torch
from safetensors import safe_open

import anchorhold
from tests.guard.helpers import batch, net, train

OTHERS = "after 3 steps of a task, and the model's weights are not those of then: they are .* away"


def in_mid_task(measure="SI", dtype=torch.float64):
    """A model, and the state of its guard after three steps of a second task."""
    model = net().to(dtype)
    guard = anchorhold.Guard(model, measure, strength=1.0)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    guard.attach(optimizer)
    train(model, optimizer, dtype=dtype)
    guard.consolidate([batch(1, dtype=dtype)])
    begun = copy.deepcopy(model)
    train(model, optimizer, dtype=dtype)
    return begun, model, copy.deepcopy(guard.state_dict())


def resumed(model, state, measure="SI"):
    guard = anchorhold.Guard(model, measure, strength=1.0)
    guard.load_state_dict(state)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    guard.attach(optimizer)
    return guard, optimizer


@pytest.mark.parametrize("measure", ["SI", "EWC"])
@pytest.mark.parametrize("other", ["drawn anew", "of the task's beginning"])
def test_other_weights_are_told_of_once_at_the_first_step(measure, other):
    begun, _, state = in_mid_task(measure)
    model = net() if other == "drawn anew" else begun
    with torch.no_grad():
        for parameter in model.parameters() if other == "drawn anew" else ():
            parameter.normal_()
    _, optimizer = resumed(model, state, measure)
    with pytest.warns(anchorhold.AnchorholdWarning, match=OTHERS) as told:
        train(model, optimizer)
    assert len(told) == 1


@pytest.mark.parametrize("order", ["model first", "guard first"])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_the_weights_of_then_go_on_in_silence(order, dtype):
    _, model, state = in_mid_task(dtype=dtype)
    other = net().to(dtype)
    if order == "model first":
        other.load_state_dict(model.state_dict())
    _, optimizer = resumed(other, state)
    if order == "guard first":  # the comparison waits for a step
        other.load_state_dict(model.state_dict())
    train(other, optimizer, dtype=dtype)


@pytest.mark.parametrize("hold", [True, False])
@pytest.mark.parametrize("monitors", [None, ()])
def test_it_is_so_whoever_watches_and_whatever_holds(hold, monitors):
    begun, model, state = in_mid_task("EWC")
    for other, is_told in ((begun, True), (model, False)):
        guard = anchorhold.Guard(other, "EWC", strength=1.0, monitors=monitors)
        guard.load_state_dict(state)
        guard.attach(optimizer := torch.optim.SGD(other.parameters(), lr=0.1), hold=hold)
        with pytest.warns(anchorhold.AnchorholdWarning, match=OTHERS) if is_told else nullcontext():
            train(other, optimizer)
        assert guard.state_dict()["weights"]["0.weight"] == other[0].weight.detach().flatten()[:16].tolist()


def test_weights_that_are_moved_before_a_step_on_purpose_are_not_told_of():
    """By a share, an average of the weights, or whatever else a task may end with."""
    _, model, state = in_mid_task("EWC")
    guard, _ = resumed(model, state, "EWC")
    guard.average(0.5)
    guard.consolidate([batch(1)])
    assert "weights" not in guard.state_dict()


def test_a_schedule_free_optimizer_may_have_been_saved_in_either_of_its_modes():
    schedulefree = pytest.importorskip("schedulefree")
    model = net()
    guard = anchorhold.Guard(model, "EWC", from_scratch=True)
    guard.attach(optimizer := schedulefree.SGDScheduleFree(model.parameters(), lr=0.1))
    optimizer.train()
    train(model, optimizer)
    optimizer.eval()
    weights, state, its = copy.deepcopy((model.state_dict(), guard.state_dict(), optimizer.state_dict()))
    other = net()
    other.load_state_dict(weights)
    again = anchorhold.Guard(other, "EWC", from_scratch=True)
    again.load_state_dict(state)
    again.attach(optimizer := schedulefree.SGDScheduleFree(other.parameters(), lr=0.1))
    optimizer.load_state_dict(its)
    optimizer.train()
    train(other, optimizer)  # a warning would be an error here


def test_a_file_has_few_numbers_of_it_and_none_between_tasks(tmp_path):
    _, model, state = in_mid_task()
    guard, _ = resumed(model, state)
    guard.save(tmp_path / "guard.safetensors")
    with safe_open(tmp_path / "guard.safetensors", "pt") as file:
        mark = json.loads(file.metadata()["holdfast"])["weights"]
    parameters = dict(model.named_parameters())
    assert mark.keys() == parameters.keys()
    for name, numbers in mark.items():
        own = parameters[name].detach().reshape(-1)
        assert numbers == own[:: max(1, own.numel() // 16)][:16].tolist()
    guard.consolidate([batch(1)])
    assert "weights" not in guard.state_dict()


def test_a_state_that_is_saved_again_before_a_step_keeps_the_mark():
    begun, _, state = in_mid_task()
    other, _ = resumed(begun, state)
    again, optimizer = resumed(begun, other.state_dict())
    with pytest.warns(anchorhold.AnchorholdWarning, match=OTHERS):
        train(begun, optimizer)
    assert again.tasks == 1


@pytest.mark.parametrize("damaged", [[1.0], {"0.weight": 1.0}, {"0.weight": ["1"]}, {"0.weight": [float("nan")]}])
def test_a_damaged_mark_is_refused(damaged):
    _, model, state = in_mid_task()
    with pytest.raises(anchorhold.errors.StateError, match="weights"):
        resumed(model, state | {"weights": damaged})
