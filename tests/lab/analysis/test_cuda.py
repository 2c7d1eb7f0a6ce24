"""On a GPU: between recorded steps the probes see what they see in the plain loop, and on a CPU."""

import pytest
import torch

from anchorhold_lab.training import FastRuns, PlainRun
from tests.lab.analysis.helpers import observed_learner
from tests.lab.training.helpers import finish

pytestmark = [
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
    pytest.mark.filterwarnings("default"),
]
PROBES = ("importances", "scatter", "path:4", "noise:3", "lca")


def learner(device, *probes, dropout=True):
    made = observed_learner(*probes, device=device, dropout=dropout)
    del made.observers["witness"]
    return made


@pytest.mark.parametrize("dropout", [False, True])
def test_both_engines_give_the_same(dropout):
    fast = finish(FastRuns([learner("cuda", *PROBES, dropout=dropout)]))
    plain = finish(PlainRun(learner("cuda", *PROBES, dropout=dropout)))
    torch.testing.assert_close(fast.observations, plain.observations, rtol=1e-6, atol=1e-9)


def test_as_on_a_cpu():
    """Without dropout, which draws differently there."""
    gpu, cpu = (finish(PlainRun(learner(device, *PROBES, dropout=False))) for device in ("cuda", "cpu"))
    torch.testing.assert_close(gpu.observations, cpu.observations, rtol=1e-6, atol=1e-9)


def test_a_run_that_is_looked_at_is_the_same_run():
    seen, unseen = learner("cuda", *PROBES), learner("cuda")
    finish(FastRuns([seen]))
    finish(FastRuns([unseen]))
    assert seen.outcome == unseen.outcome
    for name, value in unseen.model.state_dict().items():
        torch.testing.assert_close(seen.model.state_dict()[name], value, rtol=1e-9, atol=1e-12)
