"""A few of the trials that are made by the thousand with ``python -m torture.hostile_server``."""

import pytest

from torture.hostile_server import BEHAVIOURS, trials


@pytest.mark.nightly
def test_a_file_arrives_whole_or_is_refused_whatever_a_mirror_does():
    found = list(trials(0, 2 * len(BEHAVIOURS)))
    assert {outcome.kind for outcome in found} == set(BEHAVIOURS)
    assert [outcome for outcome in found if outcome.is_defect] == []
    assert {outcome.verdict for outcome in found} == {"fine", "refused"}
