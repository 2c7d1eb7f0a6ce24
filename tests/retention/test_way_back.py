"""The furthest point of the way back to the anchor that is within a tolerance."""

import dataclasses

import pytest

from anchorhold.retention.diagnosis import weaker_start
from anchorhold.retention.way_back import HALVINGS, furthest_within


def counted(function):
    """Return a function, and the list of what it was asked."""
    asked = []

    def lost_at(share):
        asked.append(share)
        return function(share)

    return lost_at, asked


def test_within_moves_nothing_and_asks_once():
    lost_at, asked = counted(lambda share: 0.01 * share**2)
    found = furthest_within(lost_at, 0.02)
    assert (found.outcome, found.share, found.kl, asked) == ("within", 1.0, 0.01, [1.0])


def test_a_parabola_is_cut_where_it_meets_the_tolerance():
    lost_at, asked = counted(lambda share: share**2)
    found = furthest_within(lost_at, 0.25)
    assert found.outcome == "pulled back"
    assert 0.5 - 2**-HALVINGS <= found.share <= 0.5
    assert found.kl == found.share**2 <= 0.25
    assert found.kl_before == 1.0
    assert len(asked) == 2 + HALVINGS
    assert found.share in asked


def test_what_is_lost_at_the_anchor_already_is_said_with_the_nearest_point():
    found = furthest_within(lambda share: 0.5 + (share - 0.25) ** 2, 0.1)
    assert (found.outcome, found.share, found.kl) == ("cannot be met", 1.0, 0.5 + 0.75**2)
    assert found.nearest == (0.25, 0.5)
    assert "cannot be met" in str(found)
    assert "share 0.25" in str(found)


def test_a_point_within_is_found_between_an_anchor_and_an_end_that_are_not():
    found = furthest_within(lambda share: (share - 0.5) ** 2, 0.04)
    assert found.outcome == "pulled back"
    assert found.share == pytest.approx(0.7, abs=2**-HALVINGS)
    assert found.kl <= 0.04


@pytest.mark.parametrize(("most", "touched"), [(None, False), (0.001, False), (0.011, True)])
def test_it_is_said_whether_the_tolerance_was_ever_touched(most, touched):
    found = furthest_within(lambda share: 0.001, 0.02, most)
    assert found.was_touched is touched
    assert ("Training never came near it" in str(found)) is not touched


def test_what_is_left_of_a_tolerance_is_explained_by_how_the_strength_went():
    found = furthest_within(lambda share: 0.1, 0.3, 0.5)
    assert "That is 33% of it, where a look at some of the kept inputs in training had found 0.5: what" in str(found)
    assert "hold less, or train for longer" in str(found)  # than a strength that nothing followed with
    told = str(dataclasses.replace(found, start=0.03, tightened=True))
    assert "the strength ended above the one that it began with" in told and "too late" not in told
    assert told.endswith("begin weaker, with Tolerance(0.3, start=0.006).")
    assert "Tolerance(0.3, start=0.06), or train" in str(dataclasses.replace(found, start=0.3))
    never = dataclasses.replace(furthest_within(lambda share: 0.001, 0.3), start=0.03)
    assert "never came near it" in str(never) and "start=0.001)" in str(never)


@pytest.mark.parametrize(("used", "start"), [(0.79, 0.2), (0.6, 0.1), (0.25, 0.04), (0.1, 0.01), (0.0, 0.01)])
def test_the_more_of_a_tolerance_was_used_the_less_weaker_it_is_to_begin(used, start):
    assert weaker_start(0.3, used) == start


def test_what_few_kept_samples_leave_open_is_said():
    found = furthest_within(lambda share: 0.01 * share, 0.01)
    assert str(dataclasses.replace(found, error=0.0009)) == str(found)
    told = str(dataclasses.replace(found, error=0.002))
    assert "may have lost from 0.006 to 0.014" in told
    assert "may have lost from 0 to 0.03" in str(dataclasses.replace(found, error=0.01))
    pulled = dataclasses.replace(furthest_within(lambda share: share**2, 0.25), error=0.1)
    assert str(pulled).endswith("keep more of them where that matters.")


def test_a_set_that_has_lost_less_but_tells_less_is_told_of():
    found = dataclasses.replace(furthest_within(lambda share: 0.01 * share, 0.01), error=0.0001)
    assert found.is_sure
    told = dataclasses.replace(found, least_sure=("few", 0.008, 0.004))
    assert not told.is_sure
    assert "Other inputs like the kept set 'few' may have lost from 0 to 0.016" in str(told)
    assert str(dataclasses.replace(found, least_sure=("many", 0.0099, 0.0002))) == str(found)


@pytest.mark.parametrize(
    "lost", [lambda share: 0.001, lambda share: 0.05 * share**2, lambda share: share**2], ids=["within", "near", "far"]
)
def test_of_a_guard_that_was_never_attached_it_says_that_and_blames_nothing_else(lost):
    told = str(dataclasses.replace(furthest_within(lost, 0.02), never_attached=True, start=0.3, at_first=0.0))
    assert "this guard was never attached to an optimizer" in told and "guard.attach(optimizer)" in told
    assert not any(blamed in told for blamed in ("too small", "never came near", "begin weaker", "Allow more"))
