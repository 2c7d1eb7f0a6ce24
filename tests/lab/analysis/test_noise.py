"""Gradient noise against its definition, one sample at a time."""

import math

import pytest
import torch

from anchorhold.errors import ConfigurationError
from anchorhold_lab.analysis.probes.noise import Noise
from anchorhold_lab.analysis.probes.sampled_steps import uniform_sample
from anchorhold_lab.training.plain_run import PlainRun
from anchorhold_lab.training.protocol import Settings
from tests.lab.analysis.helpers import gradient_of_each, observed_learner
from tests.lab.training.helpers import finish


@pytest.mark.parametrize("probe", ["noise", "noise:3"])
def test_against_the_definition(probe):
    """The step's own batch against all samples, at the weights before the step, dropout off."""
    learner = finish(PlainRun(observed_learner(probe))).learner
    models = learner.observers["witness"].models
    entries = learner.observations["noise"]["tasks"]
    assert len(entries) == 3
    for task, entry in enumerate(entries):
        assert entry["step"] == (list(range(6)) if probe == "noise" else list(uniform_sample(6, 3, seed=3, task=task)))
        for i, step in enumerate(entry["step"]):
            batch = learner.order(task, step // 3)[step % 3]
            full = gradient_of_each(models[task, step], learner, task).mean(0)
            own = gradient_of_each(models[task, step], learner, task, batch).mean(0)
            assert entry["full"][i] == pytest.approx(float(full @ full))
            assert entry["noise"][i] == pytest.approx(float((own - full).square().sum()))
            assert entry["ratio"][i] == pytest.approx(entry["noise"][i] / entry["full"][i])


def test_a_batch_of_all_samples_has_no_noise():
    settings = Settings(epochs=3, batch_size=28, learning_rate=0.01)
    learner = finish(PlainRun(observed_learner("noise", settings=settings))).learner
    for entry in learner.observations["noise"]["tasks"]:
        assert entry["noise"] == pytest.approx([0] * 3, abs=1e-25)
        assert min(entry["full"]) > 1e-6


def test_a_network_without_gradient_is_all_noise():
    learner = observed_learner("noise:1")
    with torch.no_grad():
        learner.model.heads[0].weight.zero_()
    learner.observers["noise"].task_begun(learner, 0)
    learner.observers["noise"].before_step(learner, 0, 0)
    assert learner.observations["noise"]["tasks"][-1]["ratio"] == [math.inf]


def test_at_least_one_step():
    with pytest.raises(ConfigurationError, match="noise:0: expected at least one step"):
        Noise(seed=0, size=0)
