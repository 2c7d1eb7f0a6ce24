"""Settings of measures: numbers of any library, and words that say what was wrong with others."""

import json

import numpy as np
import pytest
import torch
from torch import nn

import anchorhold
from anchorhold.engine.scores import LogLikelihood
from anchorhold.errors import ConfigurationError
from anchorhold.settings import checked_share, first_match, numbers_by_pattern


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (
            lambda: anchorhold.Fisher(samples=2.5),
            r"samples=2\.5: expected a whole number of at least 1, or None for all",
        ),
        (lambda: anchorhold.Fisher(samples=0), "samples=0: expected a whole number of at least 1"),
        (lambda: anchorhold.Fisher(samples="all"), "samples='all': expected a whole number"),
        (lambda: anchorhold.Fisher(samples=True), "samples=True: expected a whole number"),
        (lambda: anchorhold.MAS(samples=float("nan")), "samples=nan: expected a whole number"),
        (lambda: anchorhold.Fisher(labels="sampled", draws=1.5), r"draws=1\.5: expected a whole number of at least 1"),
        (lambda: anchorhold.Fisher(labels="sampled", seed=0.5), r"seed=0\.5: expected a whole number"),
        (lambda: LogLikelihood("sampled", draws=2.0), r"draws=2\.0: expected a whole number of at least 1"),
        (lambda: anchorhold.SI(damping="a"), "damping='a': expected a number above 0"),
        (lambda: anchorhold.SI(damping=None), "damping=None: expected a number above 0"),
        (lambda: anchorhold.SI(damping=float("nan")), "damping=nan: expected a number above 0"),
        (lambda: anchorhold.SI(damping=float("inf")), "damping=inf: expected a number above 0"),
        (lambda: anchorhold.SOS(alpha=float("nan")), "alpha=nan: expected a number or 'unbiased'"),
        (lambda: anchorhold.SOS(alpha="biased"), "alpha='biased': expected a number or 'unbiased'"),
        (lambda: anchorhold.SOS(beta2="0.9"), r"beta2='0\.9': expected a number from 0"),
        (lambda: anchorhold.SOS(batch_size=0.5), r"batch_size=0\.5: expected a whole number of at least 1"),
        (lambda: anchorhold.PosteriorPrecision(eta="x"), "eta='x': expected a number not below 0"),
        (lambda: anchorhold.OnlineEWC(normalise="no"), "normalise='no': expected True or False"),
        (lambda: anchorhold.MAS(average=1), "average=1: expected True or False"),
        (lambda: anchorhold.MAS(dominant="no"), "dominant='no': expected True or False"),
        (lambda: anchorhold.L2(growing="no"), "growing='no': expected True or False"),
        (lambda: anchorhold.SOS(normalise=0), "normalise=0: expected True or False"),
        (lambda: anchorhold.PosteriorPrecision(scaled="no"), "scaled='no': expected True or False"),
        (lambda: anchorhold.PosteriorPrecision(batch_size=None), "batch_size=None: expected a whole number"),
    ],
)
def test_settings_that_make_no_sense(make, message):
    with pytest.raises(anchorhold.errors.ConfigurationError, match=message):
        make()


@pytest.mark.daily
@pytest.mark.parametrize(
    ("numpys", "plain"),
    [
        (lambda: anchorhold.Fisher(samples=np.int64(5)), anchorhold.Fisher(samples=5)),
        (lambda: anchorhold.Fisher(labels="sampled", draws=np.int32(2), seed=np.uint8(3)), None),
        (lambda: anchorhold.SI(damping=np.float32(0.5)), anchorhold.SI(damping=0.5)),
        (lambda: anchorhold.SOS(alpha=np.float64(1.0), beta2=np.float16(0.5), batch_size=np.int64(8)), None),
        (lambda: anchorhold.PosteriorPrecision(batch_size=np.int8(4), eta=np.int64(1)), None),
    ],
)
def test_numbers_of_numpy_are_saved_as_pythons(numpys, plain):
    made = numpys()
    assert plain is None or made == plain
    assert all(type(v) in (int, float, str, bool, type(None)) for v in made.settings().values())
    assert type(made)(**{k: v for k, v in made.settings().items() if k != "kind"}) == made
    json.dumps(made.settings())


def test_numbers_of_python_stay_as_they_are():
    assert repr(anchorhold.SI(damping=1)) == "SI(damping=1, clamp='task')"


def test_a_measure_with_numpys_settings_is_saved(tmp_path):
    model = nn.Linear(3, 2)
    guard = anchorhold.Guard(model, anchorhold.Fisher(samples=np.int64(5)), strength=1.0)
    assert guard.consolidate([torch.randn(8, 3)])["EWC"].samples == 5
    guard.save(tmp_path / "state.safetensors")
    again = anchorhold.Guard(model, anchorhold.Fisher(samples=5), strength=1.0)
    again.load(tmp_path / "state.safetensors")
    assert torch.equal(again.importance["weight"], guard.importance["weight"])


def test_numbers_for_all_or_by_pattern():
    given = {"body.*": 2, "*": 0.5}
    assert numbers_by_pattern("threshold", given, "a number") == {"body.*": 2.0, "*": 0.5}
    assert numbers_by_pattern("threshold", 3, "a number") == 3.0
    assert first_match(given, "body.0.weight") == "body.*"
    assert first_match(given, "head.weight") == "*"
    assert first_match(["body.*"], "head.weight") is None
    for wrong in ({}, {1: 2.0}, "2", None):
        with pytest.raises(ConfigurationError, match=r"threshold=.*expected a number"):
            numbers_by_pattern("threshold", wrong, "a number")
    with pytest.raises(ConfigurationError, match=r"threshold\['\*'\]=-1: expected a number"):
        numbers_by_pattern("threshold", {"*": -1}, "a number", lambda value: value > 0)


def test_shares():
    assert [checked_share("share", given) for given in (0, 0.5, 1)] == [0.0, 0.5, 1.0]
    for wrong in (-0.1, 1.1, float("nan"), "1", True):
        with pytest.raises(ConfigurationError, match=r"share=.*expected a number from 0 to 1"):
            checked_share("share", wrong)
