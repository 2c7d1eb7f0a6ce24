"""Joint training and training anew: what each task is learned from, through which head, and what it is judged by."""

import copy
import dataclasses

import pytest
import torch
import torch.nn.functional as F

from anchorhold.errors import ConfigurationError
from anchorhold.holds import Replay
from anchorhold_lab.experiments import Spec, paper_spec
from anchorhold_lab.training.fast import FastRuns
from anchorhold_lab.training.plain_run import PlainRun
from anchorhold_lab.training.protocol import Settings
from tests.lab.training.helpers import finish, make_learner, make_scenario

USUAL = Settings(epochs=2, batch_size=8, learning_rate=0.01, samples=10)


def learner_of(trains, measure="fine-tune", **options):
    settings = dataclasses.replace(USUAL, trains=trains)
    return make_learner(measure, settings=settings, watch=options.pop("watch", ()), **options)


@pytest.mark.parametrize("own_heads", [True, False])
def test_each_task_is_learned_with_all_before_it_each_sample_through_its_own_head(own_heads):
    learner = learner_of("jointly", own_heads=own_heads, dropout=False)
    tasks = learner.scenario.tasks
    assert [len(learner.samples(task)) for task in range(3)] == [28, 56, 84]
    assert [learner.epoch_steps(task) for task in range(3)] == [3, 7, 10]
    run = PlainRun(learner)
    list(run.learn_task())
    chosen = learner.order(1, 0)[0]
    assert set((chosen // 28).tolist()) == {0, 1}
    model = copy.deepcopy(learner.model)
    losses = [
        F.cross_entropy(model(task.train.x[i - 28 * place][None], task.head), task.train.y[i - 28 * place][None])
        for i in chosen.tolist()
        for place, task in [(i // 28, tasks[i // 28])]
    ]
    expected = torch.stack(losses).mean()
    samples = learner.samples(1)
    found = learner.loss(samples.x[chosen], samples.y[chosen], 1, learner.heads(1, chosen))
    torch.testing.assert_close(found, expected)
    grads = torch.autograd.grad(found, list(learner.model.parameters()), allow_unused=True)
    for ours, theirs in zip(
        grads, torch.autograd.grad(expected, list(model.parameters()), allow_unused=True), strict=True
    ):
        torch.testing.assert_close(ours, torch.zeros_like(ours) if theirs is None else theirs)
    finish(run)
    assert len(learner.outcome.matrix) == 3


def test_a_head_whose_task_is_still_to_come_does_not_move():
    run = PlainRun(learner_of("jointly"))
    before = run.learner.model.heads[2].weight.detach().clone()
    list(run.learn_task())
    list(run.learn_task())
    assert torch.equal(run.learner.model.heads[2].weight, before)


@pytest.mark.parametrize("own_heads", [True, False])
def test_a_task_that_was_learned_anew_is_judged_by_its_own_network(own_heads):
    anew = finish(PlainRun(learner_of("anew", own_heads=own_heads))).outcomes[0]
    redrawn = make_learner("fine-tune", own_heads, settings=dataclasses.replace(USUAL, reinitialise=True), watch=())
    sequential = finish(PlainRun(redrawn)).outcomes[0]
    for task, row in enumerate(anew.matrix):
        assert row[:task] == [sequential.matrix[earlier][earlier] for earlier in range(task)]
        assert row[task:] == sequential.matrix[task][task:]
    assert anew.matrix != sequential.matrix


def test_both_engines_train_anew_alike():
    plain, fast = PlainRun(learner_of("anew")), FastRuns([learner_of("anew")])
    assert finish(plain).outcomes == finish(fast).outcomes


@pytest.mark.parametrize("trains", ["jointly", "anew"])
def test_a_run_that_stopped_goes_on_exactly(trains):
    whole = finish(PlainRun(learner_of(trains)))
    stopped, resumed = PlainRun(learner_of(trains)), PlainRun(learner_of(trains))
    told = stopped.learn()
    for _ in range(4):  # two epochs, the end of a task, and one epoch more
        next(told)
    assert (stopped.task, stopped.step) == (1, 7 if trains == "jointly" else 3)
    resumed.load_state(copy.deepcopy(stopped.state()))
    finish(resumed)
    assert resumed.outcomes == whole.outcomes
    ours, theirs = (run.learner.model.state_dict() for run in (resumed, whole))
    assert all(torch.equal(ours[name], tensor) for name, tensor in theirs.items())


@pytest.mark.parametrize("trains", ["jointly", "anew"])
@pytest.mark.parametrize(
    "more", [{"measure": "EWC"}, {"holds": [Replay(5)]}, {"watch": ("EWC",)}], ids=["measure", "hold", "watch"]
)
def test_nothing_protects_or_watches_a_bound(trains, more):
    with pytest.raises(ConfigurationError, match=f"trains='{trains}' with .*expected measure='fine-tune'"):
        learner_of(trains, **more)


def test_the_fast_engine_refuses_what_it_cannot_mix():
    with pytest.raises(ConfigurationError, match="trains='jointly'"):
        FastRuns([learner_of("jointly", scenario=make_scenario())])


class TestSpecs:
    def test_a_bound_is_asked_for_by_name_and_has_one_name(self):
        joint = paper_spec("split-digits", "fine-tune", trains="jointly")
        assert joint.engine == "plain" and joint.settings.trains == "jointly"
        assert Spec.from_dict(joint.to_dict()) == joint
        anew = [paper_spec("split-digits", "fine-tune", trains="anew", reinitialise=given) for given in (True, False)]
        assert anew[0].id == anew[1].id and anew[0].engine == "fast"
        assert len({joint.id, anew[0].id, paper_spec("split-digits", "fine-tune").id}) == 3

    @pytest.mark.parametrize(
        ("more", "message"),
        [
            ({"trains": "together"}, "expected one of 'sequentially', 'jointly', 'anew'"),
            ({"trains": "jointly", "engine": "fast"}, r"trains='jointly', which it cannot do with; expected engine="),
            ({"trains": "anew", "probes": ("importances",)}, "nothing that watches"),
            ({"trains": "anew", "holds": ("replay",)}, "no holds"),
        ],
    )
    def test_what_makes_no_sense_is_refused(self, more, message):
        with pytest.raises(ConfigurationError, match=message):
            paper_spec("split-digits", "fine-tune", **more)
