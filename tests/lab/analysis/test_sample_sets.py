"""MAS and AF from several sets of samples: one correlation a set, each as from these samples alone."""

import pytest
import torch

import anchorhold
from anchorhold.errors import ConfigurationError
from anchorhold.seeding import generator_for
from anchorhold_lab.training.plain_run import PlainRun
from tests.lab.analysis.helpers import observed_learner
from tests.lab.training.helpers import finish


def test_each_set_has_the_correlation_of_its_own_samples():
    learner = finish(PlainRun(observed_learner("sample-sets:3", watch=()))).learner
    (entry,) = learner.observations["sample-sets"]["tasks"]
    assert entry["samples"] == 10 and len(set(entry["correlations"])) == 3
    model = learner.observers["witness"].models[0, 6].eval()  # after the first task's last step
    samples, generator = learner.samples(0), generator_for(3, "sample sets")
    for noted in entry["correlations"]:
        chosen = torch.randperm(len(samples), generator=generator)[:10]
        batches = [(samples.x[chosen], samples.y[chosen])]
        measures = [anchorhold.measures.measure(name) for name in ("MAS", "AF")]
        found = [each.measure(model, batches, forward=lambda model, x: model(x, 0)) for each in measures]
        rows = torch.stack([torch.cat([row[name].flatten() for name in learner.guard.parameters]) for row in found])
        assert noted == pytest.approx(float(torch.corrcoef(rows)[0, 1]))


def test_a_number_of_sets_that_makes_no_sense_is_refused():
    for text in ("sample-sets:0", "sample-sets:few"):
        with pytest.raises(ConfigurationError, match=r"at least one set|whole number of sets"):
            observed_learner(text)
