"""Batch norm in runs: statistics that are frozen after the first task, in both engines, and folded in the plain one."""

import dataclasses

import pytest
import torch
from torch import nn

from anchorhold.errors import AnchorholdWarning, ConfigurationError
from anchorhold_lab.networks import MultiHead
from anchorhold_lab.training.fast import FastRuns
from anchorhold_lab.training.plain_run import PlainRun
from tests.lab.training.fast.test_engine import LONG, compare
from tests.lab.training.helpers import finish, make_learner, make_scenario

SHORT = dataclasses.replace(LONG, epochs=2)


def learner(batch_norm, measure="EWC", settings=LONG, **options):
    scenario = make_scenario(2, True, torch.float64, train=35)
    body = nn.Sequential(nn.Linear(6, 10, bias=False), nn.BatchNorm1d(10), nn.ReLU())
    model = MultiHead(body, 10, 3, scenario.heads).double()
    return make_learner(
        measure, settings=settings, scenario=scenario, model=model, watch=(), batch_norm=batch_norm, **options
    )


def statistics(run):
    return {name: value.clone() for name, value in run.model.named_buffers() if "running" in name}


@pytest.mark.parametrize("reinitialise", [False, True])
@pytest.mark.parametrize("engine", ["plain", "fast"])
def test_statistics_stay_as_they_are_after_the_first_task(engine, reinitialise):
    run = learner("freeze", settings=dataclasses.replace(SHORT, reinitialise=reinitialise))
    engine = PlainRun(run) if engine == "plain" else FastRuns([run])
    untrained = statistics(run)
    seen = [statistics(run) for progress in engine.learn() if progress.learned]
    assert not torch.equal(seen[0]["body.1.running_mean"], untrained["body.1.running_mean"])
    for name, value in seen[1].items():
        assert torch.equal(value, seen[0][name])


def test_the_fast_engine_freezes_as_the_plain_loop_does():
    fast, plain = finish(FastRuns([learner("freeze"), learner("freeze")])), finish(PlainRun(learner("freeze")))
    compare(fast.learners[1], plain.learner, 1e-8)


@pytest.mark.parametrize("batch_norm", ["freeze", "fold"])
def test_a_run_that_is_resumed_goes_on_exactly(batch_norm):
    whole, stopped = PlainRun(learner(batch_norm)), PlainRun(learner(batch_norm))
    finish(whole)
    steps = (progress for progress in stopped.learn() if progress.task == 1)
    next(steps)
    again = PlainRun(learner(batch_norm))
    again.load_state(stopped.state())
    finish(again)
    compare(again.learner, whole.learner, 1e-15)


def test_the_fast_engine_refuses_to_fold_and_the_plain_loop_folds():
    with pytest.raises(ConfigurationError, match="cannot do with batch_norm='fold'"):
        FastRuns([learner("fold")])
    run = finish(PlainRun(learner("fold", settings=SHORT))).learner
    assert run.guard.state_dict()["folded_norms"] == {"body.1": "body.0"}
    assert not torch.equal(run.guard.anchor["body.0.weight"], run.model.body[0].weight)


def test_runs_side_by_side_are_alike_in_it():
    with pytest.raises(ConfigurationError, match="alike but for seed and strength"):
        FastRuns([learner("freeze"), learner(None)])


def test_the_plain_loop_says_that_statistics_move():
    with pytest.warns(AnchorholdWarning, match=r"Batch norms in training mode: 'body\.1'"):
        finish(PlainRun(learner(None, settings=SHORT)))
