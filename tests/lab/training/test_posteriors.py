"""Runs of the laboratory whose weights are distributions."""

import copy
import dataclasses

import pytest
import torch

from holdfast.errors import ConfigurationError
from holdfast.holds import Variational
from holdfast.lab.scenarios import set_aside
from holdfast.lab.scenarios.unlike_tasks import with_sizes
from holdfast.lab.training.plain_run import PlainRun
from holdfast.lab.training.protocol import Settings
from tests.lab.training.helpers import finish, make_learner, make_model, make_scenario

SETTINGS = Settings(epochs=2, batch_size=8, learning_rate=0.01)


def learner(own_heads, coreset=0, kept=6, settings=SETTINGS):
    scenario = with_sizes(make_scenario(2, own_heads, torch.float64, train=35), (1, 0.6), 0)
    scenario = set_aside(scenario, kept, 0) if kept else scenario
    model = make_model(scenario).to(torch.float64)
    hold = Variational(predictions=3, coreset=coreset)
    return make_learner("fine-tune", settings=settings, scenario=scenario, model=model, watch=(), holds=[hold])


@pytest.mark.parametrize("own_heads", [False, True])
def test_a_run_with_coresets_can_stop_and_go_on_exactly(own_heads):
    whole = finish(PlainRun(learner(own_heads, coreset=2)))
    stopped = PlainRun(learner(own_heads, coreset=2))
    for _ in stopped.learn_task():
        pass
    again = PlainRun(learner(own_heads, coreset=2))
    again.load_state(copy.deepcopy(stopped.state()))
    finish(again)
    assert again.learner.outcome.matrix == whole.learner.outcome.matrix
    for name, value in whole.learner.model.state_dict().items():
        assert torch.equal(again.learner.model.state_dict()[name], value)
    hold = whole.learner.posterior.hold
    assert hold.samples == 15  # of 21 in the second task, six are the coreset
    assert len(hold.prior) == (6 if own_heads else 4)


def test_tasks_with_heads_are_judged_by_weights_that_have_seen_their_own_coreset():
    run = PlainRun(learner(own_heads=True, coreset=1))
    for _ in run.learn_task():
        pass
    seen, unseen = run.learner.posterior.weights(1)
    assert unseen is None and seen is not None
    moved = [name for name, value in run.learner.model.named_parameters() if not torch.equal(seen[name], value)]
    assert "heads.0.weight" in moved and "heads.1.weight" not in moved


def test_coresets_of_tasks_to_come_are_not_looked_at_however_often_was_consolidated(monkeypatch):
    run = PlainRun(learner(own_heads=False, coreset=1, settings=dataclasses.replace(SETTINGS, consolidate=2)))
    seen, refined = [], Variational.refined
    monkeypatch.setattr(Variational, "refined", lambda *given, **how: seen.append(given[2]) or refined(*given, **how))
    finish(run)
    assert run.learner.guard.tasks > 2
    first, second = (task.kept.x for task in run.learner.scenario.tasks)
    judged = [torch.cat([x for x, *_ in batches]) for batches in seen]
    assert len(judged) == 2 and torch.equal(judged[0], first) and torch.equal(judged[1], torch.cat([first, second]))


def test_coresets_need_samples_that_were_set_aside():
    with pytest.raises(ConfigurationError, match="has set no samples aside"):
        learner(own_heads=False, coreset=2, kept=0)
