"""Lines that have their names at their ends."""

from itertools import pairwise

import numpy as np
import pytest
from matplotlib.figure import Figure as Canvas

from anchorhold_lab.analysis import Estimate
from studies.benzing2020.drawing.labelled_lines import Level, over_samples, over_tasks


def drawn(panel):
    axes = Canvas().subplots()
    panel.draw(axes)
    return axes


def names(axes):
    """Return each name with its place, as a share of the panel's height."""
    return {text.get_text(): text.get_position()[1] for text in axes.texts if text.get_transform() == axes.transAxes}


def table(*means):
    return np.array([means, means])


def test_each_name_stands_at_its_lines_end():
    axes = drawn(over_tasks("T", {"rotated": table(98.0, 97.0), "diagonal": table(98.0, 90.0)}, y_label="%"))
    low, high = axes.get_ylim()
    found = names(axes)
    assert found["rotated"] == pytest.approx((97.0 - low) / (high - low))
    assert found["diagonal"] == pytest.approx((90.0 - low) / (high - low))


@pytest.mark.parametrize("end", [100.0, 50.0, 90.0])
def test_names_of_lines_that_meet_stand_apart_and_within_the_panel(end):
    series = {name: table(95.0, end) for name in ("rotated", "diagonal", "Kronecker")}
    places = sorted(names(drawn(over_tasks("T", series, y_label="%"))).values())
    assert all(above - below > 0.08 for below, above in pairwise(places))
    assert places[0] >= 0 and places[-1] <= 1


def test_a_line_that_may_leave_does_not_flatten_the_others_and_says_where_it_goes():
    series = {"fine-tuning": table(98.0, 40.0), "rotated": table(98.0, 97.5), "diagonal": table(98.0, 95.0)}
    axes = drawn(over_tasks("T", series, y_label="%", may_leave="fine-tuning"))
    assert axes.get_ylim()[0] > 94
    assert "fine-tuning\n↓ 40 %" in names(axes)
    series["fine-tuning"] = table(40.0, 99.0)
    assert drawn(over_tasks("T", series, y_label="%", may_leave="fine-tuning")).get_ylim()[1] > 99
    series["fine-tuning"] = table(98.0, 40.0)
    whole = drawn(over_tasks("T", series, y_label="%"))
    assert whole.get_ylim()[0] < 40 and "fine-tuning" in names(whole)
    alone = drawn(over_tasks("T", {"fine-tuning": table(98.0, 40.0)}, y_label="%", may_leave="fine-tuning"))
    assert alone.get_ylim()[0] < 40


def test_little_is_not_made_to_look_like_much_and_nothing_lies_above_100():
    low, high = drawn(over_tasks("T", {"rotated": table(100.0, 99.9)}, y_label="%")).get_ylim()
    assert high - low > 2 and 100 < high < 100.2


def test_a_level_is_shown_with_what_it_is():
    axes = drawn(over_tasks("T", {"rotated": table(98.0, 97.0)}, y_label="%", level=Level(90.0, "theirs")))
    assert "theirs" in [text.get_text() for text in axes.texts]
    assert axes.get_ylim()[0] < 90


def test_a_level_is_told_below_the_middle_where_lines_take_the_ends():
    level = Level(90.0, "theirs", at="middle")
    axes = drawn(over_tasks("T", {"rotated": table(98.0, 97.0)}, y_label="%", level=level))
    (told,) = [text for text in axes.texts if text.get_text() == "theirs"]
    assert told.get_ha() == "center" and told.xy == (0.5, 90.0) and told.xyann[1] < 0


def test_numbers_of_samples_are_on_a_scale_of_ratios_and_a_single_point_is_named_at_itself():
    series = {
        "rotated": {1000: Estimate(96.0, 0.1, 3), 60_000: Estimate(98.0, 0.1, 3), 10_000: Estimate(97.0, 0.2, 5)},
        "rotated, more damping": {1000: Estimate(97.0, float("nan"), 1)},
    }
    panel = over_samples("T", series, y_label="%")
    axes = drawn(panel)
    assert axes.get_xscale() == "log"
    assert [label.get_text() for label in axes.get_xticklabels()] == ["1,000", "10,000", "60,000"]
    assert list(names(axes)) == ["rotated"]
    (named,) = (text for text in axes.texts if text.get_text() == "rotated, more damping")
    assert named.xy == (1000, 97.0)
    assert [row[:3] for row in panel.rows[:3]] == [
        ("rotated", 1000, 96.0),
        ("rotated", 10_000, 97.0),
        ("rotated", 60_000, 98.0),
    ]
