"""Consolidation by itself: when it happens, on which samples, and what the total then is."""

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy

import anchorhold
from anchorhold.errors import BatchError, ConfigurationError, NotFiniteError, StateError
from tests import oracles


def network():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Dropout(0.5), nn.Linear(8, 3)).double()


def batch(step, size=6):
    generator = torch.Generator().manual_seed(step)
    x = torch.randn(size, 4, dtype=torch.float64, generator=generator)
    return x, torch.randint(0, 3, (size,), generator=generator)


def test_every_so_many_steps_on_the_hardest_and_the_total_is_a_mean():
    model = network()
    guard = anchorhold.Guard(model, anchorhold.MAS(average=True), strength=1.0, from_scratch=True)
    task_free = anchorhold.TaskFree(guard, every=3, hard=5, recent=2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    guard.attach(optimizer)
    hard_x, hard_y = torch.zeros(0, 4, dtype=torch.float64), torch.zeros(0, dtype=torch.long)
    found = []
    for step in range(9):
        x, y = batch(step)
        optimizer.zero_grad()
        loss = cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        done = task_free.step(loss, (x, y))
        assert model.training
        assert (done is not None) == (step % 3 == 2)
        if done is None:
            continue
        recent = [batch(step - 1), (x, y)]
        every_x = torch.cat([hard_x, *(each for each, _ in recent)])
        every_y = torch.cat([hard_y, *(each for _, each in recent)])
        model.eval()
        with torch.no_grad():
            losses = cross_entropy(model(every_x), every_y, reduction="none")
        chosen = losses.argsort(descending=True)[:5]
        hard_x, hard_y = every_x[chosen], every_y[chosen]
        data = oracles.one_by_one(hard_x, hard_y)
        found.append(oracles.importance(model, data, oracles.squared_norm, torch.abs))
        model.train()
        assert done["MAS"].samples == 5
    for name in found[0]:
        mean = torch.stack([each[name] for each in found]).mean(0)
        torch.testing.assert_close(guard.importance[name], mean, rtol=1e-9, atol=1e-14)
    assert task_free.consolidated == [3, 6, 9] and guard.tasks == 3


def test_after_a_plateau_that_follows_a_peak():
    model = network()
    guard = anchorhold.Guard(model, "MAS", strength=1.0)
    task_free = anchorhold.TaskFree(guard, plateaus=anchorhold.task_free.Plateaus(window=2, mean=0.5, variance=0.1))
    for step, loss in enumerate([2.0, 0.1, 0.1, 0.1, 3.0, 0.1, torch.tensor([0.0, 0.2])]):
        task_free.step(loss, batch(step))
    assert task_free.consolidated == [3, 7]


def test_measures_along_the_path_need_no_batch():
    model = network()
    guard = anchorhold.Guard(model, "SI", strength=1.0, from_scratch=True)
    task_free = anchorhold.TaskFree(guard, every=2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    guard.attach(optimizer)
    for step in range(4):
        x, y = batch(step)
        optimizer.zero_grad()
        loss = cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        task_free.step(loss)
    assert guard.tasks == 2


def test_samples_without_targets_are_the_last_ones():
    model = network()
    guard = anchorhold.Guard(model, "MAS", strength=1.0)
    task_free = anchorhold.TaskFree(guard, every=2, hard=4)
    for step in range(2):
        found = task_free.step(1.0, batch(step)[0])
    last = batch(1)[0][-4:]
    expected = anchorhold.MAS().measure(model, [last])
    assert found["MAS"].samples == 4
    for name, value in expected.items():
        torch.testing.assert_close(guard.importance[name], value)


def test_a_regression_is_ordered_by_squared_errors_or_as_is_said():
    model = nn.Linear(4, 2).double()
    x, y = batch(0)[0], torch.randn(6, 2, dtype=torch.float64)
    errors = (model(x) - y).detach().square().mean(1)
    for losses, order in ((None, errors), (lambda outputs, targets: -errors, -errors)):
        guard = anchorhold.Guard(model, anchorhold.Fisher(likelihood="gaussian"), strength=1.0)
        task_free = anchorhold.TaskFree(guard, every=1, hard=3, losses=losses)
        task_free.step(1.0, (x, y))
        assert torch.equal(
            torch.stack([s.target for s in task_free.samples.hard]), y[order.argsort(descending=True)[:3]]
        )


def test_it_goes_on_where_it_was():
    model = network()
    losses = [2.0, 0.1, 0.1, 0.1, 3.0, 0.1, 0.1, 0.1]

    def made():
        plateaus = anchorhold.task_free.Plateaus(window=2, mean=0.5, variance=0.1)
        return anchorhold.TaskFree(anchorhold.Guard(model, "MAS", strength=1.0), plateaus=plateaus)

    whole = made()
    for step, loss in enumerate(losses):
        whole.step(loss, batch(step))
    stopped = made()
    for step, loss in enumerate(losses[:5]):
        stopped.step(loss, batch(step))
    again = made()
    again.load_state_dict(stopped.state_dict())
    for step, loss in enumerate(losses[5:], start=5):
        again.step(loss, batch(step))
    assert again.consolidated == whole.consolidated == [3, 7]
    with pytest.raises(StateError, match="no state of TaskFree"):
        again.load_state_dict({"steps": 1})


@pytest.mark.daily
@pytest.mark.parametrize(
    "changed",
    [
        {"steps": -3},
        {"steps": 2.5},
        {"steps": "5"},
        {"steps": 4},
        {"consolidated": [-1, 5]},
        {"consolidated": [5, 3]},
        {"consolidated": [6]},
        {"consolidated": "12"},
        {"consolidated": [1.5]},
        {"plateaus": {"losses": [], "peak": "False", "last": None}},
        {"plateaus": {"losses": [], "peak": False, "last": [0.1, -0.1]}},
        {"plateaus": {"losses": [], "peak": False, "last": [0.1, 0.1, 0.1]}},
    ],
    ids=str,
)
def test_a_state_that_cannot_be_is_refused_and_changes_nothing(changed):
    guard = anchorhold.Guard(network(), "L2", strength=1.0, from_scratch=True)
    task_free = anchorhold.TaskFree(guard)
    good = {"steps": 5, "consolidated": [3, 5, 5], "plateaus": {"losses": [0.5], "peak": False, "last": [0.1, 0.0]}}
    task_free.load_state_dict(good)
    with pytest.raises(StateError, match=r"(no|This) state of (TaskFree|Plateaus)"):
        task_free.load_state_dict(good | changed)
    assert task_free.state_dict() == good


def test_what_makes_no_sense_is_refused():
    guard = anchorhold.Guard(network(), "MAS", strength=1.0)
    with pytest.raises(ConfigurationError, match="expected a Guard"):
        anchorhold.TaskFree(network())
    with pytest.raises(ConfigurationError, match="expected one of both"):
        anchorhold.TaskFree(guard, every=5, plateaus=anchorhold.task_free.Plateaus())
    with pytest.raises(ConfigurationError, match="every=0"):
        anchorhold.TaskFree(guard, every=0)
    with pytest.raises(ConfigurationError, match="A loss of type str"):
        anchorhold.TaskFree(guard).step("0.1")
    with pytest.raises(BatchError, match=r"step\(loss, batch\) takes the step's batch"):
        anchorhold.TaskFree(guard, every=1).step(0.1)
    with pytest.raises(ConfigurationError, match="expected one number for each"):
        anchorhold.TaskFree(guard, every=1, losses=lambda outputs, targets: outputs.mean()).step(0.1, batch(0))
    with pytest.raises(ConfigurationError, match=r"losses=3: expected a function losses\(outputs, targets\)"):
        anchorhold.TaskFree(guard, every=1, losses=3)
    with pytest.raises(ConfigurationError, match="returned a float for 6 samples; expected one number for each"):
        anchorhold.TaskFree(guard, every=1, losses=lambda outputs, targets: 0.5).step(0.1, batch(0))
    assert guard.tasks == 0
    spoilt = anchorhold.TaskFree(guard, every=1)
    with pytest.raises(anchorhold.AnchorholdError):
        spoilt.step(0.1, (torch.full((6, 4), torch.nan, dtype=torch.float64), batch(0)[1]))
    assert guard.tasks == 0 and not spoilt.samples.hard and len(spoilt.samples.recent) == 1
    with pytest.raises(ConfigurationError, match="average='yes'"):
        anchorhold.MAS(average="yes")


def test_what_could_not_be_consolidated_is_tried_again():
    model = network()
    guard = anchorhold.Guard(model, "EWC", strength=1.0, from_scratch=True)
    task_free = anchorhold.TaskFree(guard, plateaus=anchorhold.task_free.Plateaus(3, 2.0, 0.5), recent=1)
    bad = batch(0)[0] * torch.nan, batch(0)[1]
    for _ in range(2):
        task_free.step(1.0, bad)
    with pytest.raises(NotFiniteError, match="6 of 6 samples have a loss of NaN"):
        task_free.step(1.0, bad)
    assert guard.tasks == 0 and task_free.consolidated == []
    assert task_free.step(1.0, batch(1)) is not None
    assert guard.tasks == 1 and task_free.consolidated == [4]


def test_a_state_of_losses_that_are_none_is_refused():
    plateaus = anchorhold.task_free.Plateaus(2, 2.0, 0.5)
    with pytest.raises(StateError, match="not finite"):
        plateaus.load_state_dict({"losses": [float("nan")] * 2, "peak": True, "last": None})
    assert list(plateaus.losses) == []


def test_it_says_when_it_has_consolidated_and_how_far_the_loss_is_from_a_plateau():
    guard = anchorhold.Guard(nn.Linear(3, 2), anchorhold.L2(), strength=1.0, from_scratch=True)
    settled = anchorhold.TaskFree(guard, plateaus=anchorhold.task_free.Plateaus(window=2, mean=0.3, variance=0.05))
    assert "Plateaus(window=2, mean=0.3, variance=0.05); 0 steps seen, consolidated after none" in repr(settled)
    for loss in (0.9, 0.7):
        settled.step(loss)
    assert "now at mean 0.8 and variance 0.01; 2 steps seen, consolidated after none" in repr(settled)
    often = anchorhold.TaskFree(guard, every=1)
    for _ in range(7):
        often.step(1.0)
    assert repr(often) == "TaskFree: every 1 steps; 7 steps seen, consolidated after 2 earlier ones, 3, 4, 5, 6, 7"
