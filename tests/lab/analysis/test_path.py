"""The path integral with the full gradient, against its definition, one sample at a time."""

import dataclasses
import itertools

import pytest
import torch

from anchorhold.errors import ConfigurationError
from anchorhold_lab.analysis.probes.path import Path
from anchorhold_lab.analysis.probes.sampled_steps import stratified_sample, stretches
from anchorhold_lab.training.plain_run import PlainRun
from anchorhold_lab.training.protocol import Settings
from tests.lab.analysis.helpers import SETTINGS, gradient_of_each, loss_over_all, observed_learner, weights_of
from tests.lab.training import helpers
from tests.lab.training.helpers import finish

LONGER = dataclasses.replace(SETTINGS, epochs=5)
"""15 steps a task."""


def products(learner, task, steps, names=None):
    """−∇L(θ_t)·Δ_t for every step, from the witness's copies, over the protected parameters unless others are named."""
    models, names = learner.observers["witness"].models, names or list(learner.guard.parameters)
    weights = [weights_of(models[task, step], names) for step in range(steps + 1)]
    moves = [after - before for before, after in itertools.pairwise(weights)]
    gradients = [gradient_of_each(models[task, step], learner, task, names=names).mean(0) for step in range(steps)]
    return [-float(gradient @ move) for gradient, move in zip(gradients, moves, strict=True)]


@pytest.mark.parametrize("own_heads", [False, True])
def test_against_the_definition(own_heads):
    """With dropout in the steps, a penalty from the second task on, and heads that are not part of it."""
    learner = finish(PlainRun(observed_learner("path", own_heads=own_heads, strength=2.0))).learner
    models = learner.observers["witness"].models
    entries = learner.observations["path"]["tasks"]
    assert len(entries) == 3
    for task, entry in enumerate(entries):
        expected = products(learner, task, 6)
        assert entry["product"] == pytest.approx(expected)
        assert entry["full_path"] == pytest.approx(sum(expected))
        assert entry["full_path_error"] == 0
        head = [f"heads.{task}.{name}" for name in ("weight", "bias")] if own_heads else []
        of_head = products(learner, task, 6, head) if own_heads else [0.0] * 6
        assert entry["head_product"] == pytest.approx(of_head)
        assert entry["head_path"] == pytest.approx(sum(of_head))
        assert entry["head_path_error"] == 0
        assert entry["step"] == list(range(6))
        assert (entry["sampled"], entry["steps"]) == (6, 6)
        assert entry["loss_before"] == pytest.approx(loss_over_all(models[task, 0], learner, task))
        assert entry["loss_after"] == pytest.approx(loss_over_all(models[task, 6], learner, task))


def test_parameters_have_the_names_of_the_bare_network():
    """A guard knows those of a compiled part by them."""
    found = []
    for wrap in (lambda body: body, lambda body: torch.compile(body, backend="eager")):
        scenario = helpers.make_scenario(3, True, torch.float64)
        model = helpers.make_model(scenario, False).double()
        model.body = wrap(model.body)
        learner = helpers.make_learner(
            settings=SETTINGS, seed=3, scenario=scenario, model=model, observers={"path": Path(seed=3)}
        )
        found.append(finish(PlainRun(learner)).learner.observations["path"]["tasks"][0])
    assert found[0]["full_path"] == pytest.approx(found[1]["full_path"])
    assert found[0]["head_path"] == pytest.approx(found[1]["head_path"])


@pytest.mark.parametrize("seed", range(3))
def test_a_sample_says_what_its_steps_say(seed):
    learner = finish(PlainRun(observed_learner("path:6", settings=LONGER, seed=seed))).learner
    for task, entry in enumerate(learner.observations["path"]["tasks"]):
        every, drawn = products(learner, task, 15), stratified_sample(15, 6, seed=seed, task=task)
        assert entry["step"] == list(drawn)
        assert entry["product"] == pytest.approx([every[step] for step in drawn])
        halves = [
            len(stretch) * sum(every[step] for step in drawn if step in stretch) / 2 for stretch in stretches(15, 6)
        ]
        assert entry["full_path"] == pytest.approx(sum(halves))
        assert entry["full_path_error"] > 0
        assert (entry["sampled"], entry["steps"]) == (6, 15)


def decrease_and_path(steps):
    """A task learned by gradient descent on all samples, in so many steps that go equally far together.

    The network is smooth: where a ReLU holds the weights at its kink, steps go back and forth however small they are.
    """
    settings = Settings(epochs=steps, batch_size=28, optimizer="sgd", momentum=0.0, learning_rate=4 / steps)
    probes, smooth = ("path", "importances"), torch.nn.Tanh()
    learner = observed_learner(*probes, settings=settings, own_heads=False, dropout=False, activation=smooth)
    for _ in PlainRun(learner).learn_task():
        pass
    path, importances = (learner.observations[name]["tasks"][0] for name in probes)
    assert importances["raw_sums"]["SI"] == pytest.approx(path["full_path"])  # without noise, SI has no bias
    return path["loss_before"] - path["loss_after"], path["full_path"]


def test_the_path_integral_tends_to_the_decrease_in_loss():
    """As Euler's rule does: the error halves with the step."""
    errors = []
    for steps in (20, 40, 80, 160):
        decrease, path = decrease_and_path(steps)
        assert decrease > 0.2
        errors.append(path - decrease)
    assert errors[-1] < 0.02 * decrease
    assert [a / b for a, b in itertools.pairwise(errors)] == pytest.approx([2, 2, 2], rel=0.1)


@pytest.mark.parametrize("size", [-2, 0, 1, 7])
def test_a_sample_of_pairs(size):
    with pytest.raises(ConfigurationError, match=f"path:{size}: expected an even number"):
        Path(seed=0, size=size)


def test_nothing_is_kept_between_steps():
    """A pause in between, such as for a checkpoint, finds all there is in the state."""
    learner = finish(PlainRun(observed_learner("path"))).learner
    probe = learner.observers["path"]
    assert not probe._before and not probe._gradient
    assert all(isinstance(value, float) for value in probe.state()["tasks"][0]["product"])
    assert not any(torch.is_tensor(value) for entry in probe.tasks for value in entry.values())
