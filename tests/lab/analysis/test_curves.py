"""The curves of sums over a task's steps, against what the measures themselves add up."""

import dataclasses

import pytest

from anchorhold.errors import ConfigurationError
from anchorhold_lab.analysis.probes.curves import running_sums
from anchorhold_lab.training.fast.fast_runs import FastRuns
from anchorhold_lab.training.plain_run import PlainRun
from tests.lab.analysis.helpers import SETTINGS, loss_over_all, observed_learner
from tests.lab.training.helpers import finish


@pytest.mark.parametrize("engine", [PlainRun, lambda learner: FastRuns([learner])])
def test_the_curves_end_where_the_measures_do(engine):
    learner = observed_learner("curves", "path", dropout=False)
    finish(engine(learner))
    (entry,) = learner.observations["curves"]["tasks"]  # of the first task alone
    found = learner.observers["witness"].found[0]
    for name in ("SI", "SIU"):
        places, sums = running_sums(entry, name)
        assert places == list(range(7)) and sums[0] == 0
        assert sums[-1] == pytest.approx(sum(float(path.sum()) for path in found[name].raw.values()))
    full = learner.observations["path"]["tasks"][0]
    assert entry["full gradient"] == pytest.approx(full["product"])
    assert entry["loss"][0] == pytest.approx(full["loss_before"])
    last = learner.observers["witness"].models[0, 5]
    assert entry["loss"][-1] == pytest.approx(loss_over_all(last, learner, 0))


def test_a_sample_of_the_steps_stands_for_all_of_them():
    """Every two of a stretch are as likely, so that the mean over all seeds of the draw is the whole sum."""
    settings = dataclasses.replace(SETTINGS, epochs=4)  # 12 steps

    def sums(probe, seed):
        learner = observed_learner(probe, settings=settings, dropout=False, watch=())
        learner.observers[probe.partition(":")[0]].seed = seed
        return running_sums(finish(PlainRun(learner)).learner.observations["curves"]["tasks"][0], "SI")

    whole = sums("curves", 0)[1][-1]
    sampled = [sums("curves:8", seed) for seed in range(12)]
    assert {tuple(places) for places, _ in sampled} == {(0, 2, 4, 6, 12)}
    ends = [values[-1] for _, values in sampled]
    assert len(set(ends)) > 1 and min(ends) < whole < max(ends)
    assert sum(ends) / len(ends) == pytest.approx(whole, rel=0.1)
    with pytest.raises(ConfigurationError, match="curves:3: expected an even number"):
        observed_learner("curves:3")
