"""A learning rate that decays over each task: by its formula, and in both engines alike."""

import dataclasses

import pytest
import torch

from anchorhold.errors import ConfigurationError
from anchorhold_lab.training.fast.fast_runs import FastRuns
from anchorhold_lab.training.plain_run import PlainRun
from anchorhold_lab.training.protocol import Settings
from tests.lab.training.helpers import SETTINGS, finish, make_learner, make_model, make_scenario


def test_the_rate_falls_by_the_same_factor_at_every_step_to_what_is_left_of_it():
    rates = [Settings(learning_rate=0.4, rate_decay=0.01).rate(step, 5) for step in range(5)]
    assert rates == pytest.approx([0.4, 0.4 / 10**0.5, 0.04, 0.04 / 10**0.5, 0.004])
    assert Settings(rate_decay=0.5).rate(0, 1) == 0.001
    for wrong in (0, "a", None, True):
        with pytest.raises(ConfigurationError, match=r"rate_decay=.*: expected a number above 0"):
            Settings(rate_decay=wrong)


@pytest.mark.parametrize("optimizer", ["adam", "adamw", "sgd"])
def test_it_follows_each_tasks_own_length_in_both_engines(optimizer):
    settings = dataclasses.replace(SETTINGS, rate_decay=0.01, optimizer=optimizer, later_epochs=4)

    def learner(seed, **changes):
        scenario = make_scenario(dtype=torch.float64)
        model = make_model(scenario, dropout=False).double()
        given = dataclasses.replace(settings, **changes)
        return make_learner(settings=given, seed=seed, scenario=scenario, model=model, dropout=False)

    fast, plain = finish(FastRuns([learner(3), learner(4)])), finish(PlainRun(learner(4)))
    constant = finish(FastRuns([learner(4, rate_decay=1.0)]))
    for name, theirs in plain.learner.model.state_dict().items():
        ours = fast.learners[1].model.state_dict()[name]
        torch.testing.assert_close(ours, theirs, rtol=1e-9, atol=1e-12)
    assert not torch.allclose(plain.learner.model.body[0].weight, constant.learners[0].model.body[0].weight)
    decayed = [group["lr"] for group in plain.optimizer.param_groups]
    assert decayed == pytest.approx([0.01 * SETTINGS.learning_rate])
