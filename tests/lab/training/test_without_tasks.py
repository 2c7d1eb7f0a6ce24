"""Runs whose guard is told of no ends of tasks."""

import copy
import dataclasses

import pytest
import torch

from anchorhold.errors import AnchorholdWarning, ConfigurationError
from anchorhold_lab.experiments import paper_spec
from anchorhold_lab.training.fast import FastRuns
from anchorhold_lab.training.plain_run import PlainRun
from anchorhold_lab.training.protocol import Settings
from tests.lab.training.helpers import finish, make_learner, make_model, make_scenario

SETTINGS = Settings(epochs=3, batch_size=8, learning_rate=0.01, consolidate=5)


def learner(settings=SETTINGS, own_heads=False, **options):
    scenario = make_scenario(2, own_heads, torch.float64, train=35)
    model = make_model(scenario).to(torch.float64)
    return make_learner("MAS", settings=settings, scenario=scenario, model=model, watch=(), **options)


def test_it_consolidates_every_so_many_steps_whatever_the_tasks():
    run = finish(PlainRun(learner()))
    assert run.learner.task_free.consolidated == [5, 10, 15, 20]  # of twelve steps in each of two tasks
    assert run.learner.guard.tasks == 4
    assert len(run.learner.outcome.matrix) == 2


@pytest.mark.parametrize("stop_after", [3, 7, 14])
def test_a_run_that_stopped_goes_on_exactly(stop_after):
    whole = finish(PlainRun(learner()))
    stopped = PlainRun(learner())
    taken = 0
    while taken < stop_after:
        samples = stopped.learner.samples(stopped.task)
        order = stopped.learner.order(stopped.task, stopped.step // 4)
        stopped._take_step(samples, order[stopped.step % 4], order[stopped.step % 4])
        taken += 1
        if stopped.step == stopped.learner.task_steps(stopped.task):
            stopped.learner.end_task(stopped.task)
            stopped.task += 1
            stopped._begin_task()
    again = PlainRun(learner())
    again.load_state(copy.deepcopy(stopped.state()))
    finish(again)
    assert again.learner.task_free.consolidated == whole.learner.task_free.consolidated
    assert again.learner.outcome.matrix == whole.learner.outcome.matrix
    for name, value in whole.learner.model.state_dict().items():
        assert torch.equal(again.learner.model.state_dict()[name], value)
    for name, value in whole.learner.guard.importance.items():
        assert torch.equal(again.learner.guard.importance[name], value)


def test_what_is_told_where_tasks_end_is_refused():
    with pytest.raises(ConfigurationError, match="with heads of their own for tasks"):
        learner(own_heads=True)
    with pytest.raises(ConfigurationError, match="cannot do with consolidate=5"):
        FastRuns([learner()])
    for wrong in (0, True, "sometimes", 1.5):
        with pytest.raises(ConfigurationError, match="expected 'tasks', 'plateaus' or a number of steps"):
            Settings(consolidate=wrong)
    with pytest.raises(ConfigurationError, match="no weights are drawn anew"):
        Settings(consolidate="plateaus", reinitialise=True)


def test_specs_take_the_plain_engine_and_keep_their_names_without_it():
    spec = paper_spec("permuted-digits", "MAS", consolidate=50)
    assert spec.engine == "plain" and spec.to_dict()["settings"]["consolidate"] == 50
    usual = paper_spec("permuted-digits", "MAS")
    assert "consolidate" not in usual.to_dict()["settings"] and usual.engine == "fast"
    assert paper_spec("permuted-digits", "MAS", consolidate="tasks").id == usual.id
    with pytest.raises(ConfigurationError, match="engine='fast' with consolidate=50"):
        paper_spec("permuted-digits", "MAS", consolidate=50, engine="fast")


def test_a_run_that_never_came_to_consolidate_is_told_of():
    with pytest.warns(AnchorholdWarning, match="the run of 24 steps never came to it, so that nothing was held"):
        run = finish(PlainRun(learner(dataclasses.replace(SETTINGS, consolidate=1000))))
    assert run.learner.guard.tasks == 0
