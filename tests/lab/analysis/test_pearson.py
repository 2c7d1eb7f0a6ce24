"""Correlations from a stream, against numpy's from everything at once."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from anchorhold_lab.analysis.pearson import CoMoments


def streamed(values, sizes):
    moments = CoMoments(len(values))
    for piece in torch.as_tensor(values).split(sizes, 1):
        moments.add(piece)
    return moments


def drawn(quantities=4, count=60, offset=0.0, scale=1.0, seed=0):
    random = np.random.default_rng(seed)
    mixed = random.normal(size=(quantities, quantities)) @ random.normal(size=(quantities, count))
    return offset + scale * mixed


@given(st.lists(st.integers(0, 20), min_size=1, max_size=6).filter(lambda sizes: sum(sizes) >= 3))
def test_however_it_is_cut(sizes):
    values = drawn(count=sum(sizes))
    moments = streamed(values, sizes)
    np.testing.assert_allclose(moments.correlations(), np.corrcoef(values), atol=1e-12)
    np.testing.assert_allclose(moments.sums, values.sum(1), atol=1e-12)
    assert moments.count == sum(sizes)


@pytest.mark.parametrize(("offset", "scale"), [(1e6, 1e-3), (-1e8, 1.0), (0.0, 1e-30), (0.0, 1e20)])
def test_nothing_cancels_and_nothing_vanishes(offset, scale):
    """A sum of squares less the square of the sum would have no digit left of the first two."""
    values = drawn(offset=offset, scale=scale)
    expected = np.corrcoef(values - offset)
    np.testing.assert_allclose(streamed(values, 7).correlations(), expected, atol=1e-6 if offset else 1e-12)


def test_single_precision_is_added_up_in_double():
    values = torch.from_numpy(drawn(3, 10**6, offset=100.0, seed=1)).float()
    found = streamed(values, 2**16)
    np.testing.assert_allclose(found.correlations(), np.corrcoef(values.double()), atol=1e-12)
    np.testing.assert_allclose(found.sums, values.double().sum(1), rtol=1e-13)


@pytest.mark.parametrize("constant", [0.0, 0.1, -1e9, 1e-30])
def test_what_does_not_vary_has_no_correlation(constant):
    values = np.concatenate([drawn(2), np.full((1, 60), constant)])
    found = streamed(values, 7).correlations()
    assert bool(found[2].isnan().all()) and bool(found[:, 2].isnan().all())
    np.testing.assert_allclose(found[:2, :2], np.corrcoef(values[:2]), atol=1e-12)


def test_what_varies_only_just_still_has_one():
    values = drawn(2)
    values[1] = 1 + 1e-12 * values[0]
    assert float(streamed(values, 7).correlations()[0, 1]) == pytest.approx(1, abs=1e-3)


def test_a_correlation_is_never_above_1():
    values = np.stack([drawn(1)[0]] * 3) * np.array([[1.0], [3.0], [1 / 3]])
    assert float(streamed(values, 7).correlations().max()) <= 1


def test_what_is_not_finite_shows():
    values = drawn()
    values[1, 3] = np.nan
    found = streamed(values, 7).correlations()
    assert bool(found[1].isnan().all())
    assert bool(found[0, 2:].isfinite().all())
