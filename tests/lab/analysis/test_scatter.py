"""The weights of a scatter plot: the same ones everywhere, drawn by the seed, with the right values."""

import pytest
import torch

from anchorhold_lab.analysis.probes import scatter
from anchorhold_lab.training.plain_run import PlainRun
from tests.lab.analysis.helpers import observed_learner
from tests.lab.training.helpers import finish


def observe(seed=3):
    learner = finish(PlainRun(observed_learner("scatter", seed=seed))).learner
    return learner, learner.observations["scatter"], learner.observers["witness"].found


def row(values, learner):
    return torch.cat([values[name].flatten() for name in learner.guard.parameters]).float()


@pytest.mark.parametrize("points", [20, 10**5])
def test_the_same_weights_for_all_measures_and_both_tasks(points, monkeypatch):
    monkeypatch.setattr(scatter, "POINTS", points)
    learner, seen, found = observe()
    assert list(seen["tasks"]) == list(seen["raw"]) == ["0", "2"]
    # MAS tells all weights apart, so its values say which were drawn.
    everything = row(found[0]["MAS"].importance, learner)
    drawn = [int((everything == value).nonzero().item()) for value in seen["tasks"]["0"]["MAS"]]
    assert len(set(drawn)) == min(points, 70)
    for task in (0, 2):
        for name in learner.guard.measures:
            after = row(found[task][name].importance, learner)[drawn]
            before = row(found[task][name].raw, learner)[drawn] if name in ("SI", "SIU", "SIB") else after
            assert torch.equal(seen["tasks"][str(task)][name], after)
            assert torch.equal(seen["raw"][str(task)][name], before)


def test_the_seed_decides_which(monkeypatch):
    monkeypatch.setattr(scatter, "POINTS", 20)
    first, again = observe()[1], observe()[1]
    assert torch.equal(first["raw"]["0"]["SIU"], again["raw"]["0"]["SIU"])
    learner = finish(PlainRun(observed_learner("scatter"))).learner
    learner.observers["scatter"].seed = 4
    learner.observers["scatter"].task_ended(learner, 0, learner.observers["witness"].found[0])
    assert not torch.equal(learner.observations["scatter"]["raw"]["0"]["SIU"], first["raw"]["0"]["SIU"])


def test_negative_sides_are_kept():
    _, seen, _ = observe()
    assert bool((seen["raw"]["0"]["SIU"] < 0).any())
    assert bool((seen["tasks"]["0"]["SIU"] >= 0).all())
