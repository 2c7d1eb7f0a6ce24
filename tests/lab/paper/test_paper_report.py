import pytest

from holdfast.lab.paper.drawing.paper_report import _seeds, _short, _tally
from holdfast.lab.report import Verdict


@pytest.mark.parametrize(
    ("seeds", "written"),
    [([3], "3"), ([0, 1, 2], "0–2"), ([4, 0, 2, 1], "0–2, 4"), ([1000, 1002], "1000, 1002")],
)
def test_seeds_in_a_row_are_written_as_a_range(seeds, written):
    assert _seeds(seeds) == written


def test_that_code_had_changes_is_not_cut_off_with_the_rest_of_its_commit():
    assert _short("0123456789abcdef0123+changes") == "0123456789ab+changes"
    assert _short("0123456789abcdef0123") == "0123456789ab"
    assert _short(None) is None


@pytest.mark.parametrize(
    ("answers", "said"),
    [
        ([True, True, True], "All 3 claims hold."),
        ([True, True, False], "Of 3 claims 2 hold and 1 do not."),
        ([True, False, None], "Of 3 claims 1 hold, 1 do not, and 1 could not be checked."),
    ],
)
def test_claims_that_could_not_be_checked_are_mentioned_where_there_are_some(answers, said):
    assert _tally([Verdict("A", "It holds.", holds, "2", "above 1", "No runs.") for holds in answers]) == said
