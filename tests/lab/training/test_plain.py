"""The plain loop: what it trains, what it measures, and that it can stop anywhere."""

import copy

import pytest
import torch

import anchorhold
from anchorhold.errors import ConfigurationError, NotFiniteError
from anchorhold_lab.networks import mlp
from anchorhold_lab.training.batch_order import epoch_order, second_order, steps_per_epoch
from anchorhold_lab.training.fast import FastRuns
from anchorhold_lab.training.plain_run import PlainRun
from anchorhold_lab.training.protocol import Settings
from tests.lab.training.helpers import finish, make_learner, make_scenario


def make_run(*args, **options):
    return PlainRun(make_learner(*args, **options))


def same(a, b):
    a, b = a.learner, b.learner
    assert a.outcome == b.outcome
    assert all(torch.equal(a.model.state_dict()[k], v) for k, v in b.model.state_dict().items())
    for name in a.guard.measures:
        first, second = a.guard.held.of(name), b.guard.held.of(name)
        assert all(torch.equal(first[k], v) for k, v in second.items())


@pytest.mark.parametrize("stop_after", [1, 3, 5, 6, 8, 11, 17])
def test_a_run_that_stopped_anywhere_goes_on_exactly(stop_after):
    """Within an epoch, between epochs, and between tasks: 6 steps a task, 3 an epoch."""
    whole = finish(make_run())
    stopped = make_run()

    class Stop(Exception):
        pass

    taken, take = [], stopped._take_step

    def count(*args):
        if len(taken) == stop_after:
            raise Stop
        take(*args)
        taken.append(1)
        return 0.0

    stopped._take_step = count
    with pytest.raises(Stop):
        finish(stopped)
    state = copy.deepcopy(stopped.state())
    resumed = make_run(seed=3)
    resumed.load_state(state)
    same(finish(resumed), whole)


def test_the_same_seed_gives_the_same_run_and_another_seed_another():
    same(finish(make_run()), finish(make_run()))
    assert finish(make_run(seed=4)).outcomes != finish(make_run()).outcomes


def test_progress_is_told_after_every_epoch_and_task():
    run = make_run()
    told = [(p.task, p.step, p.epoch, p.learned, len(run.outcomes[0].matrix)) for p in run.learn()]
    epochs = [(3, 1, False), (6, 1, False), (6, 1, True)]
    assert told == [(t, s, e, learned, t + learned) for t in range(3) for s, e, learned in epochs]
    assert all(len(row) == 3 and all(0 <= value <= 1 for value in row) for row in run.outcomes[0].matrix)


def test_heads_of_ones_own_are_neither_protected_nor_drawn_anew():
    run = make_run()
    list(run.learn_task())
    assert set(run.learner.guard.importance) == {"body.0.weight", "body.0.bias"}
    kept = run.learner.model.heads[0].weight.detach().clone()
    body = run.learner.model.body[0].weight.detach().clone()
    assert not torch.equal(body, run.learner.guard.anchor["body.0.weight"])  # drawn anew, far from the anchor
    list(run.learn_task())
    assert torch.equal(run.learner.model.heads[0].weight, kept)


def test_a_shared_head_is_a_layer_like_the_others():
    run = make_run(own_heads=False)
    list(run.learn_task())
    assert "heads.0.weight" in run.learner.guard.importance
    assert not torch.equal(run.learner.model.heads[0].weight, run.learner.guard.anchor["heads.0.weight"])
    assert bool((run.learner.model.heads[0].bias == 0.1).all())


def test_without_reinitialisation_a_task_starts_where_the_last_one_ended():
    run = make_run(settings=Settings(epochs=1, batch_size=8))
    list(run.learn_task())
    assert torch.equal(run.learner.model.body[0].weight, run.learner.guard.anchor["body.0.weight"])


def test_importance_is_measured_without_dropout():
    """SOS of one step, from the gradient that a network without dropout has at the same weights."""
    scenario = make_scenario(tasks=1)
    settings = Settings(epochs=1, batch_size=28)
    run = make_run(anchorhold.SOS(beta2=0.0, normalise=False), settings=settings, seed=1, scenario=scenario, watch=())
    model = copy.deepcopy(run.learner.model).eval()
    train = scenario.tasks[0].train
    chosen = epoch_order(28, 28, seed=1, task=0, epoch=0)[0]
    torch.nn.functional.cross_entropy(model(train.x[chosen]), train.y[chosen]).backward()
    finish(run)
    torch.testing.assert_close(run.learner.guard.importance["body.0.weight"], model.body[0].weight.grad.abs())


def test_later_tasks_may_have_other_epochs_and_sgd_may_train():
    run = make_run(settings=Settings(epochs=1, later_epochs=3, batch_size=8, optimizer="sgd"))
    assert [p.epochs for p in run.learn() if p.learned] == [1, 3, 3]
    assert isinstance(run.optimizer, torch.optim.SGD)


def test_a_loss_that_diverges_names_task_and_step():
    run = make_run("L2", watch=(), model=mlp(6, (5,), 3, heads=3))
    run.learner.model.body[0].weight.data[0, 0] = float("nan")
    with pytest.raises(NotFiniteError, match="step 1 of task 1"):
        finish(run)


def test_orders_cover_an_epoch_and_differ():
    first = epoch_order(20, 6, seed=0, task=0, epoch=0)
    assert first.shape == (3, 6)
    assert len(first.unique()) == 18
    assert not torch.equal(first, epoch_order(20, 6, seed=0, task=0, epoch=1))
    assert not torch.equal(first, epoch_order(20, 6, seed=0, task=1, epoch=0))
    assert torch.equal(first, epoch_order(20, 6, seed=0, task=0, epoch=0))
    assert second_order(20, 6, seed=0, task=0, epoch=0).shape == (3, 6)
    with pytest.raises(ConfigurationError, match="batch_size=21 for a task of 20"):
        steps_per_epoch(20, 21)


@pytest.mark.parametrize(
    "wrong", [{"epochs": 0}, {"later_epochs": 0}, {"learning_rate": 0}, {"momentum": 1.0}, {"optimizer": "lion"}]
)
def test_settings_that_make_no_sense(wrong):
    with pytest.raises(ConfigurationError):
        Settings(**wrong)


@pytest.mark.parametrize("engine", [PlainRun, lambda learner: FastRuns([learner])])
def test_samples_that_are_no_numbers_are_to_blame_and_not_the_rate(engine):
    scenario = make_scenario()
    for row in (3, 5):
        scenario.tasks[0].train.x[row, 2] = float("nan")
    learner = make_learner("SI", scenario=scenario, watch=())
    with pytest.raises(NotFiniteError, match=r"task 1: 2 of its 28 training samples have NaN or infinity"):
        finish(engine(learner))
