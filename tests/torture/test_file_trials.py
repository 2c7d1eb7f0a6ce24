"""The trials with damaged files: none finds a defect, and one that is there would be found."""

import itertools

import pytest

import anchorhold
from torture import bit_flips, mutated_files
from torture.kept_files import KeptFile
from torture.outcome import RIGHT, Outcome, table


@pytest.mark.parametrize("module", [bit_flips, mutated_files])
def test_no_damage_to_a_kept_file_goes_unnoticed(module):
    found = list(itertools.islice(module.trials(0), 130))
    assert len({outcome.kind for outcome in found}) >= 13
    assert [outcome for outcome in found if outcome.verdict not in RIGHT] == []
    assert sum(outcome.verdict == "refused" for outcome in found) > 50


@pytest.mark.parametrize("module", [bit_flips, mutated_files])
def test_a_trial_can_be_made_again_by_its_seed(module):
    (seventh,) = itertools.islice(module.trials(0), 6, 7)
    (alone,) = itertools.islice(module.trials(6), 1)
    assert (alone.kind, alone.seed, alone.verdict) == (seventh.kind, 6, seventh.verdict)


def test_defects_are_told_by_their_names(tmp_path):
    path = tmp_path / "file"
    path.write_bytes(b"whole")
    known = ["what was there"]

    def reader(answer):
        def look():
            content = path.read_bytes()
            return content if content == b"whole" else answer(content)

        return look

    def refuse(content):
        raise anchorhold.errors.StateError("no")

    def lose(content):
        known.clear()
        raise anchorhold.errors.StateError("no")

    def verdict(answer, **more):
        return KeptFile("a file", path, reader(answer), **more).tried(1, b"other", "changed").verdict

    assert verdict(refuse) == "refused"
    assert verdict(lambda _: b"whole") == "unchanged"
    assert verdict(lambda _: b"whole", recovers=True) == "recovered"
    assert verdict(lambda content: content) == "SILENT CHANGE"
    assert verdict(int) == "TRACEBACK"
    assert verdict(lose, kept=lambda: tuple(known)) == "LOST"
    assert path.read_bytes() == b"whole"


def test_the_table_counts_each_verdict():
    found = [Outcome("a file", 0, "refused"), Outcome("a file", 1, "LOST"), Outcome("another", 2, "refused")]
    head, first, second, both = table(found).splitlines()
    assert head.split() == ["refused", "LOST", "trials"]
    assert first.split()[2:] == ["1", "1", "2"] and second.split()[1:] == ["1", "-", "1"]
    assert both.split() == ["all", "2", "1", "3"]
