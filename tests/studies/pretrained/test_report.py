"""The rows that are kept, and the page that is made of them."""

from pathlib import Path

import pytest

from benchmarks.language.lines import add
from studies.pretrained import report, training
from studies.pretrained.__main__ import main
from studies.pretrained.losses import DocumentLosses
from studies.pretrained.models import MODELS
from studies.pretrained.recipes import Recipe
from studies.pretrained.report import Point
from studies.pretrained.texts import KEPT
from tests.studies.pretrained.test_training import adapter
from tests.studies.pretrained.tiny import learner

ROOT = Path(__file__).parents[3]


@pytest.fixture(scope="module")
def rows():
    """Return the study's rows."""
    return report.read(ROOT / report.ROWS)


def test_the_page_is_made_of_the_rows(rows):
    assert (ROOT / "results" / "pretrained.md").read_text(encoding="utf-8") == report.text(rows)


def test_changes_and_errors_are_those_of_the_documents(rows):
    ends = report.at_end(rows)
    assert ends
    for line in ends.values():
        for told in line["texts"].values():
            after = DocumentLosses(told["documents"], told["tokens"], told["bytes"])
            before = DocumentLosses(told["documents_before"], told["tokens"], told["bytes"])
            change, error = after.change(before)
            # Documents are written with one decimal.
            assert told["change"] == pytest.approx(change, abs=1e-3)
            assert told["change_error"] == pytest.approx(error, abs=1e-3)


def test_rows_say_what_they_are_of(rows):
    digests = {}
    for line in rows:
        recipe = Recipe.of(line["recipe"])
        assert recipe.name == line["run"]
        digests.setdefault(recipe.model, set()).add((line["weights"], line["tokens"]))
    assert set(digests) <= set(MODELS)
    assert all(len(some) == 1 for some in digests.values())


def test_packed_rows_have_finished_runs_once(tmp_path):
    lines = []
    training.run(learner(own=True), adapter(), lines.append)
    killed = [*lines[:3], dict(lines[0], run="killed")]
    path = tmp_path / "rows.jsonl"
    for line in killed + lines:
        add(path, line)
    packed = report.pack([path, path], tmp_path / "rows.jsonl.zst")
    assert report.read(packed) == lines
    assert list(report.at_end(report.read(packed))) == [adapter().name]


def test_an_average_is_taken_where_the_gain_is_reached():
    recipe = adapter()
    given = [Point(recipe, 0.5, 1.0, 0.1, 0.01), Point(recipe, 1.0, 2.0, 0.5, 0.03)]
    found = report.at_gain(given, 1.5)
    assert (found.share, found.gain, found.loss, found.error) == pytest.approx((0.75, 1.5, 0.3, 0.02))
    assert report.at_gain(given, 0.5).loss == pytest.approx(0.05)
    assert report.at_gain(given, 2.5) is None


def test_small_and_uncertain_losses_are_not_counted():
    assert report.is_lost({"change": 0.05, "change_error": 0.01})
    assert not report.is_lost({"change": 0.05, "change_error": 0.02})
    assert not report.is_lost({"change": 0.009, "change_error": 0.001})


def test_a_text_that_is_learned_is_not_one_that_is_kept():
    assert report.is_of_lesson("math", "lesson-gsm8k")
    assert not any(report.is_of_lesson(kind, "lesson-basque") for kind in KEPT)


def test_a_run_that_is_not_there_is_refused(tmp_path):
    with pytest.raises(SystemExit, match="There is no run abc"):
        main(["again", "abc", str(tmp_path / "lines.jsonl"), "--rows", str(ROOT / report.ROWS)])
