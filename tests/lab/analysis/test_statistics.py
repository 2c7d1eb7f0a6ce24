"""Means with their errors, and tests whether they differ, against numpy and scipy."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from anchorhold.errors import ConfigurationError
from anchorhold_lab.analysis import (
    Estimate,
    correlation_interval,
    difference_in_errors,
    estimate,
    shares_at_least,
    welch_test,
)
from anchorhold_lab.analysis.repetitions import standard_error

accuracies = st.lists(st.floats(0, 100), min_size=2, max_size=12)


@given(accuracies)
def test_mean_and_standard_error(values):
    found = estimate(values)
    assert found.mean == pytest.approx(np.mean(values), rel=1e-12, abs=1e-300)
    assert found.error == pytest.approx(stats.sem(values), rel=1e-9, abs=1e-13)
    assert found.count == len(values)


def test_a_single_value_has_no_known_error():
    found = estimate([97.0])
    assert found.mean == 97
    assert math.isnan(found.error)
    assert math.isnan(difference_in_errors(found, Estimate(96, 0.1, 3)))
    with pytest.raises(ConfigurationError, match="no values"):
        estimate([])


def test_both_errors_count_in_a_difference():
    assert difference_in_errors(Estimate(97.5, 0.3, 3), Estimate(96.5, 0.4, 3)) == pytest.approx(2)
    assert difference_in_errors(Estimate(96.5, 0.4, 3), Estimate(97.5, 0.3, 3)) == pytest.approx(-2)
    assert difference_in_errors(Estimate(1, 0, 3), Estimate(2, 0, 3)) == -math.inf
    assert difference_in_errors(Estimate(1, 0, 3), Estimate(1, 0, 3)) == 0


@pytest.mark.parametrize("seed", range(5))
def test_welch_as_in_scipy(seed):
    random = np.random.default_rng(seed)
    a, b = random.normal(74.1, 1.4, 10), random.normal(73.5, 0.2, 3 + seed)
    found, expected = welch_test(estimate(a), estimate(b)), stats.ttest_ind(a, b, equal_var=False)
    assert found.t == pytest.approx(expected.statistic, rel=1e-10)
    assert found.freedom == pytest.approx(expected.df, rel=1e-10)
    assert found.p == pytest.approx(expected.pvalue, rel=1e-10)


def test_welch_where_there_is_no_spread():
    steady, other = estimate([5.0, 5.0]), estimate([6.0, 6.0, 6.0])
    assert welch_test(steady, other).p == 0
    assert math.isnan(welch_test(steady, steady).p)
    spread = [1.0, 2.0, 4.0]
    expected = stats.ttest_1samp(spread, 5.0)
    assert welch_test(estimate(spread), steady).p == pytest.approx(expected.pvalue)
    assert math.isnan(welch_test(estimate([1.0]), steady).p)


def test_an_interval_for_correlations_covers_the_truth_as_often_as_it_says():
    """Of repetitions that scatter around artanh 0.95."""
    random = np.random.default_rng(0)
    covered = 0
    for _ in range(2000):
        low, high = correlation_interval(np.tanh(random.normal(math.atanh(0.95), 0.3, 5)), level=0.9)
        covered += low <= 0.95 <= high
    assert covered / 2000 == pytest.approx(0.9, abs=0.02)  # three standard deviations


def test_intervals_at_the_edge():
    low, high = correlation_interval([1.0, 1.0, 0.9999])
    assert -1 <= low < 0.9999 <= high <= 1
    assert all(map(math.isnan, correlation_interval([0.9, math.nan])))
    assert all(map(math.isnan, correlation_interval([0.9])))
    with pytest.raises(ConfigurationError, match="level=95"):
        correlation_interval([0.9, 0.8], level=95)


def test_shares_of_steps_above_a_ratio():
    assert shares_at_least([1.0, 5.0, 5.0, math.inf], [0.0, 1.0, 1.5, 5.0, 6.0]) == [1.0, 1.0, 0.75, 0.75, 0.25]


def test_the_standard_error_takes_two_values():
    assert standard_error([1.0, 2.0, 3.0]) == pytest.approx(1 / math.sqrt(3))
    assert math.isnan(standard_error([1.0]))
