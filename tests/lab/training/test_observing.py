"""Observers: told of what they asked for, the same by both engines, and never disturbing."""

import pytest
import torch

from anchorhold_lab.training import FastRuns, PlainRun
from tests.lab.training.helpers import finish, make_learner


class Diary:
    """Writes down all that it is told, with the weights at that moment."""

    def __init__(self, wanted=(0, 2, 3, 5)):
        self.wanted = wanted
        self.entries = []

    def wanted_steps(self, task, steps):
        assert steps == 6
        return self.wanted if task != 1 else ()

    def _note(self, what, learner, task, *more):
        self.entries.append([what, task, *more, learner.model.body[0].weight.detach().double().sum().item()])

    def task_begun(self, learner, task):
        self._note("begun", learner, task)

    def before_step(self, learner, task, step):
        self._note("before", learner, task, step)

    def after_step(self, learner, task, step):
        self._note("after", learner, task, step)

    def task_ended(self, learner, task, found):
        assert set(found) == set(learner.guard.measures)
        self._note("ended", learner, task, float(found["SI"].raw["body.0.weight"].sum()))

    def state(self):
        return {"entries": self.entries}

    def load_state(self, state):
        self.entries = state["entries"]


def plain():
    return PlainRun(make_learner(observers={"diary": Diary()}))


def fast(batched=False):
    return FastRuns([make_learner(observers={"diary": Diary()}), make_learner(seed=4)], batched=batched)


def entries(engine):
    return engine.observations[0]["diary"]["entries"]


def test_what_is_told_and_when():
    told = [entry[:-1] for entry in entries(finish(plain()))]
    steps = [[what, step] for step in (0, 2, 3, 5) for what in ("before", "after")]
    for task in range(3):
        own = [entry for entry in told if entry[1] == task]
        assert own[0] == ["begun", task]
        assert own[-1][0] == "ended"
        assert [[entry[0], entry[2]] for entry in own[1:-1]] == (steps if task != 1 else [])


def test_the_weights_move_between_before_and_after_only():
    found = [entry for entry in entries(finish(plain())) if entry[1] == 0]
    sums = {(entry[0], entry[2]): entry[-1] for entry in found if entry[0] in ("before", "after")}
    assert found[0][-1] == sums["before", 0]
    assert all(sums["before", step] != sums["after", step] for step in (0, 2, 3, 5))
    assert sums["after", 2] == sums["before", 3]


@pytest.mark.parametrize("batched", [False, True])
def test_both_engines_tell_the_same(batched):
    expected, found = entries(finish(plain())), entries(finish(fast(batched)))
    assert [entry[:-1] for entry in found if entry[0] != "ended"] == [e[:-1] for e in expected if e[0] != "ended"]
    torch.testing.assert_close([e[-1] for e in found], [e[-1] for e in expected], rtol=1e-4, atol=1e-5)


def test_a_run_that_is_observed_is_the_same_run():
    seen, unseen = finish(fast()), finish(FastRuns([make_learner(), make_learner(seed=4)]))
    for a, b in zip(seen.learners, unseen.learners, strict=True):
        assert all(torch.equal(a.model.state_dict()[k], v) for k, v in b.model.state_dict().items())


@pytest.mark.parametrize("make", [plain, fast])
@pytest.mark.parametrize("stop_after", [1, 2, 3, 7])
def test_observations_survive_a_stop(make, stop_after):
    whole, stopped, resumed = finish(make()), make(), make()
    for _ in zip(range(stop_after), stopped.learn(), strict=False):
        pass
    resumed.load_state(stopped.state())
    assert entries(finish(resumed)) == entries(whole)
