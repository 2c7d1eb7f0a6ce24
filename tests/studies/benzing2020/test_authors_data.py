"""The authors' own data: that they stand where claims, tables and figures look for them."""

import dataclasses
import re

import numpy as np
import pytest
from matplotlib.figure import Figure as Canvas

from studies.benzing2020 import PRESETS, authors_data
from studies.benzing2020.algorithms import TABLE1
from studies.benzing2020.claims import CLAIMS, OWN_CLAIMS, Claim, check, check_all
from studies.benzing2020.claims.rule import AtLeast, mean_of
from studies.benzing2020.drawing.panels import bars, correlations_over_tasks, figure_of, lines_over_tasks
from studies.benzing2020.drawing.paper_report import report_of
from studies.benzing2020.drawing.tables.accuracy_table import accuracy_table
from studies.benzing2020.findings import Results
from studies.benzing2020.items import ITEMS

RUNS = np.array([[0.5, 0.25, 0.125], [0.5, 0.75, 0.375]])


@pytest.fixture
def paper(nothing):
    return Results(nothing.store, PRESETS["paper"])


def test_each_has_a_file_a_commit_and_a_claim_that_it_bears_on():
    assert set(authors_data.BY_CLAIM) <= set(CLAIMS)
    for theirs in (*authors_data.BY_CLAIM.values(), *authors_data.ACCURACIES.values()):
        assert re.search(r"^(CIFAR|MNIST)/\S+\.(ipynb|pickle|txt), .*commit [0-9a-f]{7}; ", theirs.source), theirs


def test_statistics_are_those_of_the_numbers_that_figures_show():
    """Worked out here once more, from the numbers as they stand in the authors' files."""
    found = {name: theirs.value for name, theirs in authors_data.BY_CLAIM.items()}
    assert found["bias-dominates"] == pytest.approx((93.89 - 12.59) / 12.59)
    assert found["a1-cifar"] == pytest.approx((8.766 - 3.456) / 3.456)
    assert found["siu-tracks-full-gradient-p-mnist"] == pytest.approx((13.02 - 12.59) / 13.02)
    assert found["sum-below-decrease-on-last-cifar-task"] == pytest.approx((2.424 - 2.076) / 2.076)
    assert found["sums-above-decrease-siu-cifar"] == pytest.approx((3.289 - 2.217) / 2.217)
    assert found["none-negative-on-first-cifar-task"] == 0.079
    assert found["bias-explains-second-order-si-cifar"] == pytest.approx(0.819 - 0.807)
    assert found["control-restores-later-tie-c-0"] == 0.96
    assert found["siu-worse-cifar"] == pytest.approx(73.88 - 73.53)


def test_a_verdict_says_where_the_text_disagrees_with_its_authors_data(nothing):
    theirs = authors_data.Theirs(0.82, "a/file.ipynb, cell 1", "one run")
    claim = Claim("x", ("figure1",), "It is 0.9.", "size", lambda _: [mean_of([0.87, 0.88, 0.89])], AtLeast(0.85))
    alone = check(claim, nothing)
    assert (alone.answer, alone.authors, alone.authors_within, alone.note) == ("holds", "", None, "")
    verdict = check(dataclasses.replace(claim, theirs=theirs, remark="Seen before."), nothing)
    assert verdict.answer == "holds" and verdict.authors_within is False
    assert verdict.authors == "0.82, one run: outside (a/file.ipynb, cell 1)"
    assert verdict.note == "Seen before. The paper's text disagrees with its authors' own data."
    held = check(dataclasses.replace(claim, theirs=dataclasses.replace(theirs, value=0.9)), nothing)
    assert held.authors_within is True and held.note == ""


def test_the_text_disagrees_where_it_is_known_to(paper):
    found = {verdict.name: verdict for verdict in check_all(paper, set(ITEMS)) if verdict.authors_within is False}
    assert set(found) == {
        "sum-below-decrease-on-last-cifar-task",
        "none-negative-on-first-cifar-task",
        "a2-cifar",
        "a2-cifar-rescaled",
        "control-restores-tie-no-re-init",
        "control-restores-tie-c-0",
        "without-top-1-siu",
    }
    for verdict in found.values():
        assert verdict.answer == "not run" and verdict.note.endswith("disagrees with its authors' own data.")


def test_on_other_data_they_say_nothing(nothing):
    assert all(not verdict.authors for verdict in check_all(nothing, set(ITEMS)))
    table = accuracy_table("table1", "Caption.", nothing, TABLE1)
    assert not any("authors" in column for column in table.columns)
    assert "authors" not in report_of(list(ITEMS.values()), nothing).lead.text


def test_tables_have_a_column_of_them(paper):
    table = accuracy_table("table1", "Caption.", paper, TABLE1)
    place = table.columns.index("the authors' data, Split CIFAR")
    assert {row[0]: row[place].mean for row in table.rows if row[place]} == {
        "SI": 73.88,
        "SIB": 75.22,
        "SIU": 73.53,
        "SOS": 74.36,
        "SI(2048)": 70.23,
        "SOS(2048)": 74.85,
    }
    said = "their number lies within the threshold of 4, and outside that of 0. Of 1 claims of our own"
    assert said in report_of([ITEMS["table1"]], paper).lead.text


@pytest.mark.parametrize("first", [1, 2])
def test_figures_show_them_beside_ours_task_by_task(first):
    series, theirs = {"SI": RUNS[:, first - 1 :]}, {"SI": (0.6, 0.4)}
    panel = lines_over_tasks("P", series, y_label="y", first=first, theirs=theirs)
    beside = [row for row in panel.rows if "authors" in row[0]]
    expected = [("SI, the authors' data", 1, 0.6, None, None), ("SI, the authors' data", 2, 0.4, None, None)]
    assert beside == expected[first - 1 :]
    assert len(panel.rows) == 4 - first + len(beside)
    same = correlations_over_tasks("P", {"SI": RUNS}, y_label="y", theirs=theirs)
    assert [row for row in same.rows if "authors" in row[0]] == expected
    _drawn(panel, stars=len(beside))
    _drawn(same, stars=2)


def test_a_star_stands_over_its_bar_and_nothing_over_what_is_not_shown():
    panel = bars("P", {"SI": RUNS[:, 0], "SIU": RUNS[:, 1]}, y_label="y", theirs={"SIU": 0.4, "SIB": 0.3})
    assert [row[0] for row in panel.rows] == ["SI", "SIU", "SIU, the authors' data"]
    (axes,) = _drawn(panel, stars=1)
    assert [line.get_xdata()[0] for line in axes.lines if len(line.get_xdata()) and line.get_marker() == "*"] == [1]


def test_series_have_the_names_of_lines_and_a_number_for_each_task():
    assert set(authors_data.WITH_SOS["CIFAR"]) == {"SI", "SIB", "SIU", "SI (no re-init)", "SI (c = 0)"}
    assert all(
        len(values) == 6
        for series in (authors_data.WITH_SOS, authors_data.SUMS, authors_data.NEGATIVE)
        for values in series["CIFAR"].values()
    )


def _drawn(panel, stars):
    canvas = Canvas()
    figure_of("f", "Caption.", [panel], columns=1).draw(canvas)
    marks = [line for axes in canvas.axes for line in axes.lines if line.get_marker() == "*"]
    assert sum(len(line.get_xdata()) for line in marks) == stars
    (named,) = [line for line in marks if line.get_label() == authors_data.NAMED]
    assert len(named.get_xdata()) == 0
    return canvas.axes


def test_a_report_without_any_run_says_what_they_say(paper):
    report = report_of(list(ITEMS.values()), paper)
    assert sum(bool(verdict.authors) for verdict in report.verdicts()) == len(authors_data.BY_CLAIM)
    assert all("python -m studies.benzing2020 " in verdict.note for verdict in report.verdicts())


def test_claims_of_our_own_have_none():
    assert all(claim.theirs is None for claim in OWN_CLAIMS.values())
