"""The rule that decides claims, with made-up numbers on both sides of every boundary.

Intervals are worked out here by scipy's t distribution, so that a rule with another level fails.
"""

import math
from typing import ClassVar

import numpy as np
import pytest
from scipy import stats

from anchorhold_lab.analysis import Estimate
from studies.benzing2020.claims.rule import (
    LEAST_SEEDS,
    LEVEL,
    AtLeast,
    AtMost,
    Between,
    Measurement,
    contrast,
    decide,
    mean_of,
)

VALUES = (1.0, 2.0, 4.0, 5.0, 8.0)  # mean 4
REACH = stats.t.ppf(0.975, 4) * np.std(VALUES, ddof=1) / math.sqrt(5)
LOW, HIGH = 4.0 - REACH, 4.0 + REACH
A_BIT = 1e-6


def answer(bound, *columns):
    return decide([mean_of(column, f"task {place}") for place, column in enumerate(columns, 1)], bound).answer


def test_the_rule_is_the_one_that_is_published():
    assert (LEVEL, LEAST_SEEDS) == (0.95, 3)


def test_the_interval_is_students():
    assert mean_of(VALUES).interval() == pytest.approx((LOW, HIGH), rel=1e-12)
    wider = stats.t.interval(0.99, 4, 4.0, np.std(VALUES, ddof=1) / math.sqrt(5))
    assert mean_of(VALUES).interval(0.99) == pytest.approx(wider, rel=1e-12)


@pytest.mark.parametrize(
    ("bound", "expected"),
    [
        (AtLeast(LOW - A_BIT), "holds"),
        (AtLeast(LOW + A_BIT), "undecided"),
        (AtLeast(HIGH - A_BIT), "undecided"),
        (AtLeast(HIGH + A_BIT), "does not hold"),
        (AtMost(HIGH + A_BIT), "holds"),
        (AtMost(HIGH - A_BIT), "undecided"),
        (AtMost(LOW + A_BIT), "undecided"),
        (AtMost(LOW - A_BIT), "does not hold"),
        (Between(LOW - A_BIT, HIGH + A_BIT), "holds"),
        (Between(LOW + A_BIT, HIGH + A_BIT), "undecided"),
        (Between(LOW - A_BIT, HIGH - A_BIT), "undecided"),
        (Between(HIGH - A_BIT, 99.0), "undecided"),
        (Between(HIGH + A_BIT, 99.0), "does not hold"),
        (Between(-99.0, LOW + A_BIT), "undecided"),
        (Between(-99.0, LOW - A_BIT), "does not hold"),
        (Between(3.9, 4.1), "undecided"),  # narrower than the interval, which contains both limits
    ],
)
def test_one_measurement_on_both_sides_of_its_limits(bound, expected):
    assert answer(bound, VALUES) == expected


@pytest.mark.parametrize(("seeds", "expected"), [(1, "undecided"), (2, "undecided"), (3, "holds"), (4, "holds")])
def test_fewer_than_three_seeds_decide_nothing_however_clear_they_are(seeds, expected):
    values = [100.0 + seed for seed in range(seeds)]
    assert answer(AtLeast(0.0), values) == expected
    found = decide([mean_of(values)], AtLeast(0.0))
    assert found.why == ("" if seeds > 2 else f"Too few seeds: {seeds}, where the rule asks for 3.")
    refuted = "undecided" if seeds < 3 else "does not hold"
    assert answer(AtLeast(1000.0), values) == refuted


def test_one_of_several_with_too_few_seeds_leaves_all_undecided():
    assert answer(AtLeast(0.0), VALUES, (100.0, 101.0)) == "undecided"


def test_seeds_that_agree_to_the_last_digit_are_decided_without_an_interval():
    assert answer(AtLeast(2.0), (2.0, 2.0, 2.0)) == "holds"
    assert answer(AtLeast(2.1), (2.0, 2.0, 2.0)) == "does not hold"


def test_what_is_no_number_is_undecided():
    found = decide([mean_of((math.nan,) * 3)], AtLeast(0.0))
    assert (found.answer, found.why) == ("undecided", "The statistic is not a number.")


class TestSeveralTasks:
    """A claim about several holds if it holds on each, and does not hold if it fails on one."""

    good, bad = tuple(value + 10 for value in VALUES), tuple(value - 20 for value in VALUES)

    def test_all_have_to_hold(self):
        assert answer(AtLeast(LOW - A_BIT), VALUES, self.good) == "holds"
        assert answer(AtLeast(LOW + A_BIT), VALUES, self.good) == "undecided"

    def test_one_that_fails_is_enough(self):
        assert answer(AtLeast(LOW + A_BIT), VALUES, self.bad, self.good) == "does not hold"

    def test_the_one_with_the_widest_interval_may_decide_though_its_mean_is_higher(self):
        wide = (-6.0, 4.0, 5.0, 6.0, 16.0)
        found = decide([mean_of(VALUES, "task 1"), mean_of(wide, "task 2")], AtLeast(LOW - A_BIT))
        assert (found.answer, found.decided_by.where) == ("undecided", "task 2")

    @pytest.mark.parametrize(("tasks", "level"), [(2, 0.975), (5, 0.99)])
    def test_one_of_k_fails_by_the_interval_for_k(self, tasks, level):
        high = stats.t.interval(level, 4, 4.0, np.std(VALUES, ddof=1) / math.sqrt(5))[1]
        others = [tuple(value + 100 for value in VALUES)] * (tasks - 1)
        assert answer(AtLeast(high + A_BIT), VALUES, *others) == "does not hold"
        assert answer(AtLeast(high - A_BIT), VALUES, *others) == "undecided"
        assert high > HIGH + A_BIT
        found = decide([mean_of(VALUES), *map(mean_of, others)], AtLeast(high - A_BIT))
        assert f"beyond the limit, but not at {100 * level:.1f} %, by which one of {tasks} fails." in found.why


class TestDifferences:
    a: ClassVar = {0: 5.0, 1: 7.0, 2: 9.0, 3: 14.0}
    b: ClassVar = {0: 4.0, 1: 6.5, 2: 7.0, 3: 13.5}

    def test_they_are_taken_seed_by_seed(self):
        found = contrast((1.0, self.a), (-1.0, self.b))
        low, high = stats.ttest_rel(list(self.a.values()), list(self.b.values())).confidence_interval(0.95)
        assert found.interval() == pytest.approx((low, high), rel=1e-10)
        assert found.seeds == 4

    def test_over_the_seeds_that_both_have_whatever_their_order(self):
        more = {7: -100.0, **dict(reversed(self.a.items()))}
        assert contrast((1.0, more), (-1.0, self.b)) == contrast((1.0, self.a), (-1.0, self.b))

    @pytest.mark.parametrize("shared", [0, 1, 2])
    def test_with_fewer_than_three_shared_seeds_the_interval_is_welchs(self, shared):
        b = {seed + 4 - shared: value for seed, value in self.b.items()}
        found = contrast((1.0, self.a), (-1.0, b))
        welch = stats.ttest_ind(list(self.a.values()), list(b.values()), equal_var=False).confidence_interval(0.95)
        assert found.interval() == pytest.approx((welch.low, welch.high), rel=1e-10)

    def test_three_shared_seeds_are_enough_for_pairs(self):
        b = {seed + 1: value for seed, value in self.b.items()}
        found = contrast((1.0, self.a), (-1.0, b))
        assert (found.seeds, found.freedom) == (3, 2)
        assert found.mean == pytest.approx(((7 - 4) + (9 - 6.5) + (14 - 7)) / 3)

    def test_a_single_run_on_one_side_has_no_interval(self):
        found = contrast((1.0, self.a), (-1.0, {9: 1.0}))
        assert (found.seeds, found.mean) == (1, pytest.approx(7.75)) and math.isnan(found.error)
        assert decide([found], AtLeast(0.0)).answer == "undecided"

    def test_a_published_mean_has_its_own_error(self):
        found = contrast((1.0, self.a), (-1.0, Estimate(6.0, 0.5, 10)))
        welch = stats.ttest_ind_from_stats(
            *(np.mean(list(self.a.values())), np.std(list(self.a.values()), ddof=1), 4),
            *(6.0, 0.5 * math.sqrt(10), 10),
            equal_var=False,
        )
        assert found.mean / found.error == pytest.approx(welch.statistic)
        assert 2 * stats.t.sf(found.mean / found.error, found.freedom) == pytest.approx(welch.pvalue)

    def test_four_sides_are_paired_as_two_are(self):
        found = contrast((1.0, self.a), (-1.0, self.b), (-1.0, self.b), (1.0, self.a))
        assert found.mean == pytest.approx(2 * contrast((1.0, self.a), (-1.0, self.b)).mean)
        assert found.freedom == 3


def test_bounds_say_what_they_ask_for():
    assert [str(bound) for bound in (AtLeast(0.5), AtMost(2), Between(-1.0, 1.0))] == ["≥ 0.5", "≤ 2", "from -1 to 1"]


def test_a_measurement_without_any_spread_is_its_own_interval():
    assert Measurement(1.0, 0.0, math.nan, 3).interval() == (1.0, 1.0)
