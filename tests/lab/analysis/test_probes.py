"""All probes together: by name, the same by both engines, across a stop, and never in the way."""

import pytest
import torch

from anchorhold.errors import ConfigurationError
from anchorhold_lab.analysis.probes.noise import Noise
from anchorhold_lab.analysis.probes.path import Path
from anchorhold_lab.analysis.probes.registry import make_probe
from anchorhold_lab.experiments.store.nested_files import Flattened, read_nested
from anchorhold_lab.training import FastRuns, PlainRun
from tests.lab.analysis.helpers import observed_learner
from tests.lab.training.helpers import finish

PROBES = ("importances", "scatter", "path:4", "noise:3", "lca:1e-3")


def observations(engine, run=0):
    return {name: seen for name, seen in engine.observations[run].items() if name != "witness"}


def fast(batched=False):
    return FastRuns([observed_learner(*PROBES), observed_learner(*PROBES, seed=4)], batched=batched)


@pytest.mark.parametrize("batched", [False, True])
def test_both_engines_give_the_same(batched):
    both = finish(fast(batched))
    for run, seed in enumerate((3, 4)):
        plain = finish(PlainRun(observed_learner(*PROBES, seed=seed)))
        assert set(observations(plain)) == {"importances", "scatter", "path", "noise", "lca"}
        torch.testing.assert_close(observations(both, run), observations(plain), rtol=1e-6, atol=1e-9)


@pytest.mark.parametrize("make", [lambda: PlainRun(observed_learner(*PROBES)), fast], ids=["plain", "fast"])
@pytest.mark.parametrize("stop_after", [2, 6, 7, 11])
def test_a_run_that_stopped_goes_on_exactly(make, stop_after, monkeypatch, tmp_path):
    """In the middle of an epoch, at a task's end, and within the second task; with every step told, through a file."""
    monkeypatch.setattr("anchorhold_lab.training.plain_run.TELL_EVERY", 0.0)
    monkeypatch.setattr("anchorhold_lab.training.fast.fast_runs.TELL_EVERY", 0.0)
    whole, stopped, resumed = finish(make()), make(), make()
    for _ in zip(range(stop_after), stopped.learn(), strict=False):
        pass
    Flattened.of(stopped.state()).write(tmp_path / "state.safetensors")
    resumed.load_state(read_nested(tmp_path / "state.safetensors"))
    finish(resumed)
    for run in range(len(whole.outcomes)):
        torch.testing.assert_close(observations(resumed, run), observations(whole, run), rtol=0, atol=0)


@pytest.mark.parametrize("engine", [PlainRun, lambda learner: FastRuns([learner])], ids=["plain", "fast"])
def test_a_run_that_is_looked_at_is_the_same_run(engine):
    seen, unseen = observed_learner("importances", "scatter", "path", "noise", "lca"), observed_learner()
    del unseen.observers["witness"]
    finish(engine(seen))
    finish(engine(unseen))
    assert seen.outcome == unseen.outcome
    for name, value in unseen.model.state_dict().items():
        assert torch.equal(seen.model.state_dict()[name], value)
    for name in unseen.guard.measures:
        for key, value in unseen.guard.held.of(name).items():
            assert torch.equal(seen.guard.held.of(name)[key], value)


def test_names_and_numbers():
    assert [make_probe(text, seed=0)[0] for text in PROBES] == ["importances", "scatter", "path", "noise", "lca"]
    sampled, whole = make_probe("path:6", seed=5)[1], make_probe("noise", seed=5)[1]
    assert isinstance(sampled, Path) and (sampled.size, sampled.seed) == (6, 5)
    assert isinstance(whole, Noise) and (whole.size, whole.seed) == (None, 5)
    assert make_probe("lca", seed=5)[1].tolerance == 1e-4 and make_probe("lca:1e-6", seed=5)[1].tolerance == 1e-6


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("pathology", "No probe is called 'pathology'; there are importances, scatter, path, noise, curves, lca"),
        ("path:", "'path:': expected a whole number of steps, such as 'path:100'"),
        ("noise:many", "'noise:many': expected a whole number of steps, such as 'noise:100'"),
        ("path:3", "path:3: expected an even number"),
        ("lca:", "'lca:': expected a tolerance, such as 'lca:1e-5'"),
        ("lca:0", "lca=0.0: expected a tolerance above 0"),
        ("lca:nan", "lca=nan: expected a tolerance above 0"),
        ("scatter:10", "'scatter:10': expected 'scatter' alone"),
    ],
)
def test_a_wrong_name_says_what_there_is(text, message):
    with pytest.raises(ConfigurationError, match=message):
        make_probe(text, seed=0)
