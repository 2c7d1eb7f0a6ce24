"""What runs note of how they are held and what is left, against predictions that are compared by hand."""

import copy
import warnings

import pytest
import torch

from anchorhold import Tolerance
from anchorhold.errors import ConfigurationError
from anchorhold_lab.scenarios.kept_samples import set_aside
from anchorhold_lab.training import FastRuns, PlainRun, Settings
from anchorhold_lab.training.telling.retention import TRACED, TaskRetention
from tests.lab.training.helpers import finish, make_learner, make_model, make_scenario

SETTINGS = Settings(epochs=6, batch_size=8, learning_rate=0.02, samples=10)
KEPT = 12


def keeping(own_heads=True, tasks=3, **options):
    scenario = set_aside(make_scenario(tasks, own_heads, torch.float64, train=40), KEPT, seed=0)
    model = make_model(scenario, dropout=False).double()
    given = {"measure": "EWC", "settings": SETTINGS, "watch": (), "scenario": scenario, "model": model}
    return make_learner(**given | options)


def following(**options):
    return keeping(**{"tolerance": Tolerance(0.1, every=2)} | options)


def snapshots(engine):
    """Learn, and return the network as it was after each task."""
    return [copy.deepcopy(learner_of(engine).model) for progress in engine.learn() if progress.learned]


def learner_of(engine):
    return engine.learner if isinstance(engine, PlainRun) else engine.learners[0]


def kl_by_hand(old, new, task):
    with torch.no_grad():
        p, q = (model.eval()(task.kept.x, task.head).log_softmax(-1) for model in (old, new))
    return float((p.exp() * (p - q)).sum(-1).mean())


@pytest.mark.parametrize("own_heads", [True, False])
@pytest.mark.parametrize("engine", [PlainRun, lambda learner: FastRuns([learner])])
def test_what_is_left_is_compared_with_what_was_said_when_each_task_had_been_learned(engine, own_heads):
    running = engine(keeping(own_heads, strength=0.5))
    models = snapshots(running)
    learner = learner_of(running)
    tasks = learner.scenario.tasks
    assert [noted.task for noted in learner.outcome.retention] == [0, 1, 2]
    for noted in learner.outcome.retention:
        assert noted.strength == 0.5 and noted.share is None and noted.tolerance is None
        assert [each.name for each in noted.sets] == [f"task {k + 1}" for k in range(noted.task)]
        for k, each in enumerate(noted.sets):
            assert each.kl == pytest.approx(kl_by_hand(models[k], models[noted.task], tasks[k]), rel=1e-6)
            assert each.count == KEPT and each.loss_then > 0
    assert learner.outcome.retention[-1].kl > 1e-4


def test_both_engines_note_the_same_and_only_the_plain_one_looks_within_tasks():
    plain, fast = finish(PlainRun(keeping())), finish(FastRuns([keeping()]))
    for own, other in zip(plain.outcomes[0].retention, fast.outcomes[0].retention, strict=True):
        assert [each.kl for each in own.sets] == pytest.approx([each.kl for each in other.sets], rel=1e-6)
        assert bool(own.trace) == bool(own.task) and not other.trace


def test_keeping_changes_nothing_of_training():
    kept = finish(PlainRun(keeping()))
    scenario = kept.learner.scenario
    tasks = tuple(copy.copy(task) for task in scenario.tasks)
    for task in tasks:
        object.__setattr__(task, "stored_kept", None)
    without = keeping(scenario=type(scenario)(scenario.name, tasks, scenario.classes))
    plain = finish(PlainRun(without))
    assert plain.outcomes[0].matrix == kept.outcomes[0].matrix and plain.outcomes[0].retention == []
    ours, theirs = kept.learner.model.state_dict(), plain.learner.model.state_dict()
    assert all(torch.equal(ours[name], theirs[name]) for name in ours)


def test_a_tolerance_is_met_at_the_end_and_each_task_has_an_equal_part_of_it():
    learner = following(tolerance=Tolerance(0.03, every=2))
    finish(PlainRun(learner))
    first, *later = learner.outcome.retention
    assert first.strength is None and first.sets == () and first.trace == ()
    assert [noted.tolerance for noted in later] == pytest.approx([0.015, 0.03])
    for noted in later:
        assert 0 < noted.kl <= noted.tolerance and 0 < noted.share <= 1
        assert noted.strength == noted.trace[-1].strength and len(noted.trace) <= TRACED
    unheld = keeping(measure="fine-tune")
    finish(PlainRun(unheld))
    assert unheld.outcome.retention[-1].kl > 0.06  # which it would not have been otherwise


@pytest.mark.parametrize("own_heads", [True, False])
@pytest.mark.parametrize("stop_after", [3, 9, 14])
def test_a_run_with_a_tolerance_that_stopped_goes_on_exactly(stop_after, own_heads):
    whole = finish(PlainRun(following(own_heads=own_heads)))
    stopped = PlainRun(following(own_heads=own_heads))
    for _, _ in zip(range(stop_after), stopped.learn(), strict=False):
        state = copy.deepcopy(stopped.state())
    again = PlainRun(following(own_heads=own_heads))
    again.load_state(state)
    finish(again)
    assert again.outcomes == whole.outcomes
    ours, theirs = again.learner.model.state_dict(), whole.learner.model.state_dict()
    assert all(torch.equal(ours[name], theirs[name]) for name in ours)


def test_weights_that_are_drawn_anew_are_told_of_and_the_tolerance_is_met_all_the_same():
    again = Settings(epochs=6, batch_size=8, learning_rate=0.02, samples=10, reinitialise=True)
    learner = following(settings=again, tasks=2)
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        finish(PlainRun(learner))
    assert any("Before the first step of this task" in str(each.message) for each in told)
    assert learner.outcome.retention[-1].kl <= 0.1


def test_the_fast_engine_refuses_a_tolerance():
    with pytest.raises(ConfigurationError, match=r"cannot do with tolerance=0.1.*expected engine='plain'"):
        FastRuns([following()])


def test_a_tolerance_needs_samples_that_were_set_aside():
    with pytest.raises(ConfigurationError, match="has set no samples aside"):
        make_learner("EWC", watch=(), tolerance=Tolerance(0.1))


def test_a_relative_strength_says_what_it_has_become():
    learner = make_learner("EWC", watch=(), relative_strength=0.3)
    running = PlainRun(learner)
    seen = [progress.seen for progress in running.learn()]
    assert seen[0][0].strength is None and seen[-1][0].strength == learner.guard.strength > 0
    assert [noted.strength for noted in learner.outcome.retention] == [learner.guard.strength] * 3
    assert all(noted.sets == () for noted in learner.outcome.retention)


def test_progress_has_what_is_lost_by_the_last_look_and_says_nothing_where_all_is_known():
    learner = following(tasks=2)
    during = [progress for progress in PlainRun(learner).learn() if progress.task == 1]
    assert all(set(progress.seen[0].lost) == {"task 1"} for progress in during)
    assert len({progress.seen[0].worst for progress in during}) > 3
    last = learner.outcome.retention[-1]
    assert during[-1].learned and during[-1].seen[0] == last.seen and last.seen.worst == last.kl
    plain = PlainRun(make_learner("EWC", watch=()))
    assert {progress.seen for progress in plain.learn()} == {()} and "retention" not in plain.state()


def test_what_was_noted_is_written_and_read():
    learner = finish(PlainRun(following())).learner
    for noted in learner.outcome.retention:
        assert TaskRetention.from_dict(noted.to_dict()) == noted
    given = learner.outcome.retention[-1].to_dict()
    for damage in ({"task": "two"}, {"strength": "much"}, {"sets": [{"name": "task 1"}]}, {"more": 1}):
        with pytest.raises(ConfigurationError, match="What is left of tasks"):
            TaskRetention.from_dict(given | damage)
