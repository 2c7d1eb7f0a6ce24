"""A strength that follows a tolerance, in a guard: what it ends at, what it refuses, and how it goes on."""

import copy
import math
import re
import warnings

import pytest
import torch

import anchorhold
from anchorhold import Tolerance
from anchorhold.guard.retention.following import part_of
from anchorhold.guard.retention.keep_inputs import FEW
from tests.guard.helpers import batch, loss, net, weights
from tests.helpers import grouped

KEPT = [batch(20, 40)]


def new_task(seed):
    """Samples of another task, which knows one class alone."""
    x, y = batch(seed)
    return x, torch.zeros_like(y)


def guarded(model, measure=None, kept=KEPT, **options):
    options = {"tolerance": Tolerance(0.05, every=2)} | options
    guard = anchorhold.Guard(model, measure or anchorhold.Fisher(), **grouped(**options))
    guard.consolidate([batch(9)])
    if kept:
        guard.keep(kept, "old")
    return guard


def learn(model, optimizer, steps, start=0):
    for seed in range(start, start + steps):
        optimizer.zero_grad()
        loss(model, new_task(seed)).backward()
        optimizer.step()


def adam(model, rate=0.01):
    return torch.optim.Adam(model.parameters(), rate)


@pytest.mark.parametrize("given", [0, -1, math.nan, math.inf, "much", True, [0.1]])
def test_a_tolerance_that_is_none_is_refused(given):
    with pytest.raises(anchorhold.errors.ConfigurationError, match=r"tolerance=.*: expected a number of nats above 0"):
        anchorhold.Guard(net(), "EWC", tolerance=given)
    guard = guarded(net())
    with pytest.raises(anchorhold.errors.ConfigurationError, match="nats above 0"):
        guard.tolerance = given
    with pytest.raises(anchorhold.errors.ConfigurationError, match="nats above 0"):
        guard.pull_back(given)
    assert guard.tolerance == 0.05


@pytest.mark.parametrize(
    ("options", "match"),
    [
        ({"strength": 1.0}, "the strength follows the tolerance"),
        ({"anchor": "mean"}, "Take anchor='last'"),
        ({"batch_norm": "fold"}, "Take batch_norm='freeze'"),
    ],
)
def test_what_does_not_go_together_with_a_tolerance_is_refused(options, match):
    with pytest.raises(anchorhold.errors.ConfigurationError, match=match):
        anchorhold.Guard(net(), "EWC", tolerance=0.1, **grouped(**options))


@pytest.mark.parametrize(
    "settings", [{"every": 0}, {"every": 1.5}, {"damping": -1}, {"damping": math.nan}, {"start": 0}]
)
def test_settings_of_a_tolerance_that_make_no_sense_are_refused(settings):
    with pytest.raises(anchorhold.errors.ConfigurationError, match=rf"{next(iter(settings))}=.*: expected"):
        Tolerance(0.1, **settings)


def test_a_strength_that_follows_is_not_set_and_one_that_does_not_has_no_tolerance():
    guard = guarded(net())
    with pytest.raises(anchorhold.errors.ConfigurationError, match=r"here it follows tolerance=0.05"):
        guard.strength = 3.0
    plain = anchorhold.Guard(net(), "EWC")
    assert plain.tolerance is None
    assert plain.exchange_rate == 1.0
    with pytest.raises(anchorhold.errors.ConfigurationError, match="made with a strength"):
        plain.tolerance = 0.1
    with pytest.raises(anchorhold.errors.ConfigurationError, match="without a tolerance"):
        plain.pull_back()


def test_a_held_step_without_kept_inputs_is_refused_with_what_to_do_and_not_taken():
    model = net()
    guard = guarded(model, kept=None)
    optimizer = adam(model)
    guard.attach(optimizer)
    before = weights(model)
    loss(model, new_task(0)).backward()
    with pytest.raises(anchorhold.errors.OrderError, match=re.escape("tolerance=0.05 and no inputs to measure it on")):
        optimizer.step()
    assert all(torch.equal(parameter, before[name]) for name, parameter in model.named_parameters())
    guard.keep(KEPT)
    optimizer.step()
    assert guard.gradients.path.steps == 1


def test_steps_that_are_not_held_need_no_kept_inputs_and_a_penalty_does():
    model = net()
    guard = guarded(model, kept=None)
    optimizer = adam(model)
    guard.attach(optimizer, hold=False)
    learn(model, optimizer, 2)
    assert guard.gradients.path.steps == 2 and guard.control.trace == ()
    with pytest.raises(anchorhold.errors.OrderError, match=re.escape("tolerance=0.05 and no inputs to measure it on")):
        guard.penalty()  # of no strength at all
    with pytest.warns(
        anchorhold.AnchorholdWarning, match=r"keep\(\) after 2 steps of task 2: .* from the weights of now"
    ):
        guard.keep(KEPT)
    learn(model, optimizer, 2)
    assert guard.penalty() > 0 and guard.control.trace[-1].strength == guard.strength


def test_nothing_is_needed_before_the_first_consolidation():
    model = net()
    guard = anchorhold.Guard(model, "EWC", tolerance=0.1, from_scratch=True)
    optimizer = adam(model)
    guard.attach(optimizer)
    learn(model, optimizer, 2)
    assert guard.control.trace == ()


@pytest.mark.parametrize("form", ["diagonal", "rotated"])
@pytest.mark.parametrize("nats", [0.02, 0.2])
def test_training_ends_near_the_tolerance_and_never_beyond_it(form, nats):
    model = net()
    guard = guarded(model, form=form, tolerance=Tolerance(nats, every=2))
    optimizer = adam(model)
    guard.attach(optimizer)
    learn(model, optimizer, 300)
    late = [point.kl for point in guard.control.trace if point.step > 200]
    assert 0.75 * nats < math.exp(sum(map(math.log, late)) / len(late)) < 3 * nats
    found = guard.pull_back()
    assert found.outcome in ("within", "pulled back")
    assert found.was_touched
    assert guard.retention().kl == found.kl <= nats
    assert guard.retention().is_within


def test_without_a_guard_more_would_be_lost():
    model = net()
    guard = anchorhold.Guard(model, "fine-tune")
    guard.keep(KEPT)
    learn(model, adam(model), 300)
    assert guard.retention().kl > 0.5


def held(guard):
    """Return Ω as the hold has it, which is damped; ``guard.importance`` is as it was measured."""
    return {name: matrix.diagonal()[name] for name, matrix in guard._core.state.driving.held.items()}


def test_the_strength_begins_at_one_over_the_mean_importance_and_omega_is_damped():
    model = net()
    undamped = anchorhold.Guard(copy.deepcopy(model), anchorhold.Fisher())
    undamped.consolidate([batch(9)])
    guard = guarded(model, tolerance=Tolerance(0.05, every=1000, damping=0.25, start=3.0))
    every = torch.cat([omega.reshape(-1) for omega in undamped.importance.values()])
    for name, omega in held(guard).items():
        assert torch.equal(guard.importance[name], undamped.importance[name])
        torch.testing.assert_close(omega, undamped.importance[name] + 0.25 * every.mean(), rtol=1e-12, atol=0)
    optimizer = adam(model)
    guard.attach(optimizer)
    learn(model, optimizer, 1)
    assert guard.strength == pytest.approx(3.0 / float(every.mean()), rel=1e-12)
    guard.consolidate([batch(9)])
    undamped.consolidate([batch(8)])
    assert guard.tasks == 2


def test_only_a_tolerance_damps():
    model = net()
    guard = anchorhold.Guard(model, anchorhold.Fisher(), strength=2.0)
    guard.consolidate([batch(9)])
    assert guard.held.matrices.keys() == guard.importance.keys()
    ledger = guard._core.state.driving
    assert ledger.held is ledger.total


def test_sgd_is_not_given_a_strength_that_it_cannot_bear():
    model = net()
    guard = guarded(model, tolerance=Tolerance(1e-4, every=1, start=1.0), implicit=False)
    optimizer = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9)
    guard.attach(optimizer)
    with warnings.catch_warnings():
        warnings.simplefilter("error", anchorhold.AnchorholdWarning)  # that the strength is too much
        warnings.filterwarnings("ignore", ".*the largest that this SGD bears")
        learn(model, optimizer, 60)
    most = max(float(omega.max()) for omega in held(guard).values())
    assert 2 * guard.strength * most == pytest.approx(0.5 * 2 * 1.9 / 0.1)
    assert all(bool(parameter.isfinite().all()) for parameter in model.parameters())


def test_a_tolerance_that_cannot_be_met_is_told_of_and_nothing_is_moved():
    model = net()
    guard = guarded(model, protect="0.*")
    optimizer = adam(model)
    guard.attach(optimizer)
    learn(model, optimizer, 100)
    before = weights(model)
    with pytest.warns(anchorhold.AnchorholdWarning, match=r"cannot be met: .* are lost, .* at the nearest point"):
        found = guard.pull_back(1e-6)
    assert found.outcome == "cannot be met"
    assert found.nearest is not None
    assert found.nearest[1] <= found.kl == found.kl_before
    assert all(torch.equal(parameter, before[name]) for name, parameter in model.named_parameters())


def test_what_begins_broken_is_told_of_before_the_first_step():
    model = net()
    guard = guarded(model)
    with torch.no_grad():
        model[2].weight.normal_(std=3.0, generator=torch.Generator().manual_seed(1))
    optimizer = adam(model)
    guard.attach(optimizer)
    with pytest.warns(
        anchorhold.AnchorholdWarning, match="Before the first step of this task, predictions on the kept set"
    ):
        learn(model, optimizer, 1)
    assert guard.control.trace[0].step == 0
    assert guard.control.trace[0].kl > guard.tolerance


def test_a_tolerance_that_is_never_touched_is_said_to_be():
    model = net()
    with pytest.warns(
        anchorhold.AnchorholdWarning,
        match="A tolerance of 50 nats allows everything .* 3 classes.* 1.099 nats",
    ):
        guard = guarded(model, tolerance=Tolerance(50.0, every=2, start=0.1))
    optimizer = adam(model)
    guard.attach(optimizer)
    learn(model, optimizer, 20)
    assert guard.strength < math.exp(guard._core.state.control.log_start)
    found = guard.pull_back()
    assert (found.outcome, found.was_touched) == ("within", False)
    assert "never came near it" in str(found) and 'take form="rotated"' in str(found)
    assert (found.start, found.tightened) == (0.1, False)


def test_consolidate_goes_back_first_or_leaves_everything_as_it_was():
    model = net()
    guard = guarded(model, tolerance=Tolerance(0.01, every=1000, start=1e-6))
    optimizer = adam(model)
    guard.attach(optimizer)
    learn(model, optimizer, 60)
    assert guard.retention().kl > 0.01
    before, seen = weights(model), guard.control.last_seen
    with pytest.raises(anchorhold.errors.BatchError):
        guard.consolidate([])
    assert guard.control.last_seen == seen and guard.control.pulled_back is None
    assert all(torch.equal(parameter, before[name]) for name, parameter in model.named_parameters())
    guard.consolidate([batch(9)])
    assert 0.0095 < guard.retention().kl <= 0.01
    for name, parameter in model.named_parameters():
        assert torch.equal(guard.anchor[name], parameter)


def test_the_way_back_is_the_line_to_the_anchor():
    model = net()
    guard = guarded(model, tolerance=Tolerance(0.01, every=1000, start=1e-6))
    anchor = {name: tensor.clone() for name, tensor in guard.anchor.items()}
    optimizer = adam(model)
    guard.attach(optimizer)
    learn(model, optimizer, 60)
    end = weights(model)
    found = guard.pull_back()
    assert 0 < found.share < 1
    for name, parameter in model.named_parameters():
        expected = anchor[name] + found.share * (end[name] - anchor[name])
        torch.testing.assert_close(parameter.detach(), expected, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("at", [7, 8])
def test_a_run_that_was_stopped_in_the_middle_of_a_task_goes_on_bit_for_bit(tmp_path, at):
    """The kept inputs come from their own file, and all else from the guard's."""
    chunks = [batch(20 + k, 40) for k in range(4)]

    def started():
        model = net()
        guard = guarded(model, kept=chunks)
        guard.keep([batch(30, 50)], "other")
        optimizer = torch.optim.SGD(model.parameters(), 0.02)
        guard.attach(optimizer)
        return model, guard, optimizer

    model, guard, optimizer = started()
    learn(model, optimizer, at)
    guard.save(tmp_path / "guard")
    guard.kept.save(tmp_path / "kept")
    torch.save(model.state_dict(), tmp_path / "model")
    learn(model, optimizer, 13, start=at)

    other = net(seed=3)
    other.load_state_dict(torch.load(tmp_path / "model"))
    again = anchorhold.Guard(other, anchorhold.Fisher(), tolerance=Tolerance(0.05, every=2))
    again.kept.load(tmp_path / "kept")
    again.load(tmp_path / "guard")
    opt = torch.optim.SGD(other.parameters(), 0.02)
    again.attach(opt)
    learn(other, opt, 13, start=at)
    assert again.strength == guard.strength
    assert again.control.trace == guard.control.trace
    assert len(guard.control.trace) == 11
    for name, parameter in other.named_parameters():
        assert torch.equal(parameter, dict(model.named_parameters())[name])
    assert again.retention() == guard.retention()


def test_a_state_says_that_it_needs_its_kept_inputs(tmp_path):
    model = net()
    guard = guarded(model)
    guard.save(tmp_path / "guard")
    again = anchorhold.Guard(model, anchorhold.Fisher(), tolerance=0.05)
    with pytest.warns(anchorhold.AnchorholdWarning, match="kept inputs are data, which no guard's file carries"):
        again.load(tmp_path / "guard")
    optimizer = adam(model)
    again.attach(optimizer)
    loss(model, new_task(0)).backward()
    with pytest.raises(anchorhold.errors.OrderError, match="saved with the kept set 'old', and it is not here"):
        optimizer.step()
    again.keep(KEPT, "another")
    with pytest.raises(anchorhold.errors.OrderError, match="saved with the kept set 'old'"):
        optimizer.step()
    again.kept.drop("old")
    optimizer.step()


def test_states_with_and_without_a_tolerance():
    plain = anchorhold.Guard(net(), anchorhold.Fisher(), strength=2.0)
    plain.consolidate([batch(9)])
    assert not {"tolerance", "control", "kept"} & plain.state_dict().keys()
    guard = guarded(net())
    with pytest.raises(anchorhold.errors.StateError, match=r"The state was made with tolerance=0.05"):
        plain.load_state_dict(guard.state_dict())
    fresh = anchorhold.Guard(net(), anchorhold.Fisher(), tolerance=0.3)
    fresh.load_state_dict(plain.state_dict())
    assert fresh.tolerance == 0.3
    for name, omega in held(fresh).items():
        assert bool((omega > plain.importance[name]).all())  # damped by what is loaded too
    with pytest.warns(anchorhold.AnchorholdWarning, match="kept inputs"):
        fresh.load_state_dict(guard.state_dict())
    assert fresh.tolerance == 0.05


@pytest.mark.daily
@pytest.mark.parametrize(
    "damage",
    [
        {"tolerance": 0},
        {"tolerance": "0.1"},
        {"kept": ["a", "a"]},
        {"control": {"log_c": "x"}},
        {"control": {"trace": 3}},
        {"control": []},
    ],
)
def test_a_damaged_state_is_refused_and_changes_nothing(damage):
    model = net()
    guard = guarded(model)
    optimizer = adam(model)
    guard.attach(optimizer)
    learn(model, optimizer, 4)
    state = guard.state_dict()
    strength, trace = guard.strength, guard.control.trace
    with pytest.raises(anchorhold.errors.StateError, match="damaged"):
        guard.load_state_dict({**state, **damage})
    assert (guard.strength, guard.control.trace) == (strength, trace)


def test_traces_have_the_second_order_prediction_beside_what_is_measured():
    model = net()
    guard = guarded(model)
    optimizer = adam(model)
    guard.attach(optimizer)
    learn(model, optimizer, 4)
    point = guard.control.trace[-1]
    assert point.step == 4
    assert point.strength == guard.strength
    undamped = guard._core.state.driving.total
    half = 0.5 * sum(
        float((undamped[name].omega * (parameter.detach() - guard.anchor[name]).square()).sum())
        for name, parameter in model.named_parameters()
    )
    assert point.predicted == pytest.approx(half, rel=1e-10)
    assert guard.retention().second_order_prediction == pytest.approx(half, rel=1e-10)
    assert guard.retention().to_dict()["anchorhold/second_order_prediction"] == pytest.approx(half, rel=1e-10)
    assert point.kl == pytest.approx(guard.retention().kl, rel=1e-10)  # all of the set is one part
    assert guard.control.last_seen == {"old": point.kl}
    learn(model, optimizer, 1, start=4)
    assert guard.control.last_look == 4
    guard.pull_back()
    assert guard.control.last_look == 5
    other = guarded(net(), measure="L2")
    optimizer = adam(other._core.runtime.model)
    other.attach(optimizer)
    learn(other._core.runtime.model, optimizer, 2)
    assert other.control.trace[-1].predicted is None
    assert other.retention().second_order_prediction is None
    assert "anchorhold/second_order_prediction" not in other.retention().to_dict()


def test_looking_changes_nothing_of_training_and_happens_without_a_tolerance_too():
    models = [net(), net()]
    for model, kept in zip(models, (True, False), strict=True):
        guard = anchorhold.Guard(model, anchorhold.Fisher(), strength=3.0)
        guard.consolidate([batch(9)])
        if kept:
            guard.keep(KEPT)
        optimizer = adam(model)
        guard.attach(optimizer)
        torch.manual_seed(0)
        learn(model, optimizer, 30)
        assert bool(guard.control.trace) is kept
        if kept:
            assert [point.step for point in guard.control.trace] == [0, 17]  # 40 / (0.1 · 3 · 8)
            assert {point.strength for point in guard.control.trace} == {3.0}
    for one, two in zip(models[0].parameters(), models[1].parameters(), strict=True):
        assert torch.equal(one, two)


def test_sets_are_looked_at_in_turn_and_the_worst_counts():
    model = net()
    guard = guarded(model)
    guard.keep([batch(31, 40)], "other")
    optimizer = adam(model)
    guard.attach(optimizer)
    learn(model, optimizer, 2)
    first = guard.control.last_seen
    learn(model, optimizer, 2, start=2)
    second = guard.control.last_seen
    assert first["old"] == second["old"]
    assert first["other"] < second["other"]
    assert guard.control.trace[-1].kl == max(second.values())


def test_parts_of_a_set_have_enough_predictions():
    guard = anchorhold.Guard(net(), "L2")
    kept = guard.keep([batch(seed, 50) for seed in range(6)])
    assert [part_of(kept, cursor) for cursor in (0, 3, 5)] == [[0, 1, 2], [3, 4, 5], [5]]


def test_tokens_of_one_large_batch_are_looked_at_as_often_as_those_of_small_ones():
    model = torch.nn.Linear(4, 3)
    guard = anchorhold.Guard(model, "L2")
    guard.consolidate()
    guard.keep([torch.randn(64, 20, 4)])
    optimizer = adam(model)
    guard.attach(optimizer)
    for _ in range(16):
        optimizer.zero_grad()
        model(torch.randn(4, 20, 4)).square().mean().backward()
        optimizer.step()
    assert [point.step for point in guard.control.trace] == [0, 8, 16]


def test_several_optimizers_that_take_turns_look_once():
    model = net()
    guard = guarded(model)
    optimizers = [torch.optim.Adam(part.parameters(), 0.01) for part in (model[0], model[2])]
    guard.attach(*optimizers)
    for seed in range(4):
        model.zero_grad()
        loss(model, new_task(seed)).backward()
        for optimizer in optimizers:
            optimizer.step()
    assert [point.step for point in guard.control.trace] == [0, 2, 4]


def test_a_measure_without_importance_has_no_strength_to_follow():
    with pytest.raises(
        anchorhold.errors.ConfigurationError, match="fine-tune, which finds no importance whose strength"
    ):
        anchorhold.Guard(net(), "fine-tune", tolerance=0.1)
    model = net()
    guard = guarded(model, anchorhold.measures.Magnitude())
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.zero_()
    guard.consolidate()
    assert guard.tasks == 2


@pytest.mark.filterwarnings("ignore:.*the largest that this SGD bears")
def test_with_several_optimizers_the_strength_is_what_all_of_them_bear():
    model = net()
    guard = guarded(model, tolerance=Tolerance(1e-6, every=1))
    first, second = torch.optim.Adam(model[0].parameters(), lr=1e-2), torch.optim.SGD(model[2].parameters(), lr=1.0)
    guard.attach(first, second)
    for seed in range(60):
        first.zero_grad()
        second.zero_grad()
        loss(model, new_task(seed)).backward()
        first.step()
        second.step()
    most = max(float(omega.max()) for name, omega in held(guard).items() if name.startswith("2."))
    assert 2 * guard.strength * most <= 0.5 * 2 / 1.0 + 1e-9
    assert all(bool(parameter.isfinite().all()) for parameter in model.parameters())


def test_the_bound_of_an_earlier_tasks_optimizer_does_not_count():
    model = net()
    guard = guarded(model, tolerance=Tolerance(1e-6, every=1), implicit=False)
    ends = []
    for optimizer in (torch.optim.SGD(model.parameters(), lr=0.5), torch.optim.SGD(model.parameters(), lr=0.005)):
        guard.attach(optimizer)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", anchorhold.AnchorholdWarning)  # that the tolerance is used up
            learn(model, optimizer, 40)
            ends.append(guard.strength)
            guard.consolidate([batch(9)])
        guard.detach()
    assert ends[1] > 2 * ends[0]


def test_a_rate_that_rises_takes_the_strength_down_at_once():
    model = net()
    guard = guarded(model, tolerance=Tolerance(0.05, every=1000, start=100.0), implicit=False)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    rates = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: min(1.0, step / 3))
    guard.attach(optimizer)
    for seed in range(20):
        optimizer.zero_grad()
        loss(model, new_task(seed)).backward()
        optimizer.step()
        rates.step()
    most = max(float(omega.max()) for omega in held(guard).values())
    assert 2 * guard.strength * most <= 0.5 * 2 / 0.5 + 1e-9
    assert all(bool(parameter.isfinite().all()) for parameter in model.parameters())


def test_a_set_of_other_predictions_than_a_state_was_saved_with_is_refused():
    model = net()
    guard = guarded(model)
    optimizer = adam(model)
    guard.attach(optimizer)
    learn(model, optimizer, 40)
    state = guard.state_dict()
    again = anchorhold.Guard(model, anchorhold.Fisher(), tolerance=0.05)
    again.keep(KEPT, "old")  # what the half-trained model says
    again.load_state_dict(state)
    again.attach(optimizer := adam(model))
    with pytest.raises(anchorhold.errors.OrderError, match="of other predictions than the one here"):
        learn(model, optimizer, 1)
    with pytest.raises(anchorhold.errors.OrderError, match="of other predictions than the one here"):
        again.consolidate([batch(9)])


def test_a_state_brings_how_its_tolerance_is_followed_and_no_strengths_beside_one():
    guard = guarded(net(), tolerance=Tolerance(0.05, every=2, damping=1.0, aim=2.0))
    again = anchorhold.Guard(net(), anchorhold.Fisher(), tolerance=0.05)
    again.kept.add(guard.kept["old"])
    again.load_state_dict(guard.state_dict())
    assert torch.equal(held(again)["0.weight"], held(guard)["0.weight"])
    other = anchorhold.Guard(net(), anchorhold.Fisher(), strength={"0.*": 0.0, "*": 3.0})
    other.consolidate([batch(9)])
    with pytest.raises(anchorhold.errors.StateError, match=r"The state was made with .* has tolerance=0.05"):
        again.load_state_dict(other.state_dict())


def test_a_state_that_brings_another_tolerance_says_so():
    guard = guarded(net(), tolerance=0.5, kept=[])
    for given in (0.5, Tolerance(0.5, start=0.03)):  # a warning would be an error here
        guarded(net(), tolerance=given, kept=[]).load_state_dict(guard.state_dict())
    strict = guarded(net(), tolerance=0.05, kept=[])
    said = r"made with tolerance=0\.05, and the state .* has tolerance=0\.5.* set guard\.tolerance"
    with pytest.warns(anchorhold.AnchorholdWarning, match=said):
        strict.load_state_dict(guard.state_dict())
    assert strict.tolerance == 0.5
    strict.load_state_dict(guard.state_dict())  # which changes nothing any more
    strict.tolerance = 0.1  # as for one task after another
    guarded(net(), tolerance=0.5, kept=[]).load_state_dict(strict.state_dict())


def test_a_guard_says_what_is_kept_and_lost():
    model = net()
    guard = guarded(model, kept=None)
    assert "tolerance 0.05 nats" in repr(guard)
    assert guard.strength == 0  # which nobody has given, and nothing has found yet
    assert "none yet, and it takes some before the first held step" in repr(guard)
    guard.keep(KEPT, "old")
    assert "keeps 'old' (40 samples); not looked at in this task yet" in repr(guard)
    optimizer = adam(model)
    guard.attach(optimizer)
    learn(model, optimizer, 2)
    assert "strength" in repr(guard)
    assert re.search(r"[\d.e-]+ nats were lost of 'old' at the last look.*; looks every 2 steps", repr(guard))


def test_a_copy_goes_on_by_itself():
    model = net()
    guard = guarded(model)
    twin = copy.deepcopy({"model": model, "guard": guard})
    with torch.no_grad():
        model[0].weight.add_(1.0)
    assert guard.retention().kl > 0.01
    assert twin["guard"].retention().kl == pytest.approx(0, abs=1e-14)


def test_a_step_with_a_closure_is_looked_at_once():
    model = net()
    guard = guarded(model)
    optimizer = torch.optim.LBFGS(model.parameters(), lr=0.01, max_iter=3)
    guard.attach(optimizer)

    def closure():
        optimizer.zero_grad()
        value = loss(model, new_task(0))
        value.backward()
        return value

    for _ in range(4):
        optimizer.step(closure)
    assert [point.step for point in guard.control.trace] == [0, 2, 4]


def after_a_task():
    """Return a model, its guard and its optimizer when a second task has ended, which uses the tolerance up."""
    model = net()
    guard = guarded(model)
    optimizer = adam(model)
    guard.attach(optimizer)
    learn(model, optimizer, 100)
    guard.consolidate([batch(9)])
    return model, guard, optimizer


def test_a_tolerance_that_is_used_up_is_told_of_before_the_next_task_and_after_it():
    model, guard, optimizer = after_a_task()
    assert guard.control.pulled_back.outcome == "pulled back" and guard.control.last_seen == {
        "old": guard.retention().kl
    }
    assert "beyond the tolerance" not in str(guard)
    with pytest.warns(
        anchorhold.AnchorholdWarning, match=r"leaves \S+ to this task\. Earlier tasks have used it up\. What"
    ):
        learn(model, optimizer, 1)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", anchorhold.AnchorholdWarning)
        learn(model, optimizer, 100)
    with pytest.warns(anchorhold.AnchorholdWarning, match=r"nearly all that was learned is undone"):
        found = guard.pull_back()
    assert found.is_undone and found is guard.control.pulled_back
    assert "0.0499 were lost before the first step of this task" in str(found)


def test_a_way_back_after_training_without_the_guard_says_that_it_was_never_attached():
    model = net()
    guard = guarded(model)
    with torch.no_grad():
        model[0].weight.add_(1.0)
    found = guard.pull_back()
    assert found.outcome == "pulled back" and "was never attached" in str(found) and "too small" not in str(found)


def test_one_that_was_attached_or_whose_state_has_steps_does_not_say_so():
    model = net()
    guard = guarded(model)
    guard.attach(optimizer := adam(model))
    learn(model, optimizer, 4)
    assert "never attached" not in str(guard.pull_back())
    guard.detach()
    assert "never attached" not in str(guard.pull_back())
    twin = guarded(net())
    twin.load_state_dict(guard.state_dict())
    assert "never attached" not in str(twin.pull_back())


def test_a_task_that_is_allowed_more_than_the_one_before_begins_without_a_word():
    model, guard, optimizer = after_a_task()
    guard.tolerance = 0.08
    learn(model, optimizer, 1)  # most of it is used, as was meant


def test_a_task_that_was_taken_in_is_diagnosed_as_it_was_before():
    model = net()
    guard = guarded(model, tolerance=Tolerance(0.4, every=2, start=0.001), form="rotated")
    optimizer = adam(model)
    guard.attach(optimizer)
    learn(model, optimizer, 60)
    with torch.no_grad():  # less is lost in the end than on the way
        for name, parameter in guard.parameters.items():
            parameter.lerp_(guard.anchor[name], 0.8)
    guard.consolidate([batch(9)])
    before = str(guard.control.pulled_back)
    assert "a look at some of the kept inputs in training had found" in before and "begin weaker" in before
    assert str(guard.pull_back()) == before


def test_a_first_task_that_nothing_held_is_told_of():
    model = net()
    guard = anchorhold.Guard(model, anchorhold.Fisher(), tolerance=0.001, from_scratch=True)
    guard.keep([batch(5, 16)], "old")
    optimizer = adam(model)
    guard.attach(optimizer)
    learn(model, optimizer, 50)
    with pytest.warns(anchorhold.AnchorholdWarning, match=r"nats are lost of the kept set 'old'.*nothing was held"):
        guard.consolidate([batch(9)])
    assert guard.tasks == 1


def test_what_a_state_was_saved_with_is_not_kept_anew_in_the_middle_of_its_task():
    model = net()
    guard = guarded(model)
    optimizer = adam(model)
    guard.attach(optimizer)
    learn(model, optimizer, 5)
    again = anchorhold.Guard(model, anchorhold.Fisher(), tolerance=0.05)
    with pytest.warns(anchorhold.AnchorholdWarning, match="saved with the kept set 'old'"):
        again.load_state_dict(guard.state_dict())
    with pytest.raises(anchorhold.errors.OrderError, match="what a half-trained model says"):
        again.keep([batch(5)], "old")
    again.kept.drop("old")
    again.keep([batch(5, 16)], "old")  # asked for


@pytest.mark.parametrize(("form", "share"), [("diagonal", 0.001), ("rotated", 0.1), ("kronecker", 0.1)])
def test_how_much_is_added_to_importances_goes_by_the_form_unless_it_is_said(form, share):
    assert guarded(net(), form=form, tolerance=0.05)._core.state.driving.damping == share
    said = guarded(net(), form=form, tolerance=Tolerance(0.05, damping=0.02))
    assert said._core.state.driving.damping == 0.02
    again = anchorhold.Guard(net(), anchorhold.Fisher(), form=form, tolerance=0.05)
    again.kept.add(said.kept["old"])
    again.load_state_dict(said.state_dict())
    assert again._core.state.driving.damping == 0.02


def test_a_state_means_the_same_where_defaults_are_others():
    guard = guarded(net(), tolerance=0.05)
    state = guard.state_dict()
    assert (state["tolerance"]["damping"], state["tolerance"]["start"]) == (0.001, 0.1)
    state["tolerance"] |= {"damping": None, "start": 0.3}  # as it was written when a hundredth was the default
    again = anchorhold.Guard(net(), anchorhold.Fisher(), tolerance=0.05)
    again.kept.add(guard.kept["old"])
    again.load_state_dict(state)
    assert again._core.state.driving.damping == 0.01
    assert again._core.state.tolerance.start_in(again.options.form) == 0.3


def test_going_back_says_how_sure_it_is():
    model = net()
    guard = guarded(model, tolerance=0.05)
    optimizer = adam(model)
    guard.attach(optimizer)
    learn(model, optimizer, 20)
    found = guard.pull_back(0.01)
    assert found.error == guard.retention().worst.error > 0


def test_going_back_tells_of_the_set_that_is_least_sure():
    model = net()
    guard = guarded(model, tolerance=0.05)
    with pytest.warns(anchorhold.AnchorholdWarning, match="The set 'few' has 4 samples"):
        guard.keep(KEPT[0][0][12:16], "few")
    optimizer = adam(model)
    guard.attach(optimizer)
    learn(model, optimizer, 20)
    found = guard.pull_back(0.01)
    left = guard.retention()
    assert left.worst.name == "old"
    assert 2 * left.worst.error < 0.2 * 0.01 < 2 * left["few"].error
    assert found.least_sure == ("few", left["few"].kl, left["few"].error)
    assert not found.is_sure
    assert "like the kept set 'few' may have lost" in str(found)


def test_a_single_kept_sample_is_told_of():
    model = net()
    guard = anchorhold.Guard(model, anchorhold.Fisher(), tolerance=0.05)
    guard.consolidate([batch(0)])
    with pytest.warns(anchorhold.AnchorholdWarning, match="has one sample, and the tolerance is met on that alone"):
        guard.keep([tuple(part[:1] for part in batch(5))], "old")
    with pytest.warns(anchorhold.AnchorholdWarning, match="The kept set 'old' is a single sample, which tells nothing"):
        assert not guard.pull_back().is_sure
    anchorhold.Guard(net(), anchorhold.Fisher(), strength=1.0).keep(
        [tuple(part[:1] for part in batch(5))]
    )  # nothing is met


@pytest.mark.parametrize("count", [3, FEW - 1])
def test_so_few_kept_samples_that_their_spread_says_nothing_are_told_of(count):
    guard = anchorhold.Guard(net(), anchorhold.Fisher(), tolerance=0.05)
    guard.consolidate([batch(0)])
    told = rf"The set 'old' has {count} samples, and the tolerance is met on those alone.*Keep a few hundred"
    with pytest.warns(anchorhold.AnchorholdWarning, match=told):
        guard.keep([batch(5, count)], "old")
    assert guard.kept["old"].samples == count
    guard.keep([batch(6, FEW)], "enough")
    anchorhold.Guard(net(), anchorhold.Fisher(), strength=1.0).keep([batch(5, count)])  # nothing is met


def test_a_strength_that_sgd_bears_no_more_of_is_told_of_once():
    for implicit in (False, True):
        model = net()
        guard = guarded(model, tolerance=Tolerance(1e-4, every=2, start=100.0), implicit=implicit)
        optimizer = torch.optim.SGD(model.parameters(), 0.5, momentum=0.9)
        guard.attach(optimizer)
        with warnings.catch_warnings(record=True) as told:
            warnings.simplefilter("always")
            learn(model, optimizer, 40)
        said = [str(each.message) for each in told if "the largest that this SGD bears" in str(each.message)]
        assert len(said) == (0 if implicit else 1)
