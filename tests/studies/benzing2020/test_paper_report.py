import pytest

from anchorhold_lab.experiments import paper_spec
from anchorhold_lab.report import Verdict
from studies.benzing2020 import PRESETS, items_named
from studies.benzing2020.claims import counted
from studies.benzing2020.drawing.paper_report import _described, _seeds, _short, report_of
from studies.benzing2020.findings import Results


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


def test_claims_of_our_own_are_counted_apart_from_the_papers(nothing):
    paper = Results(nothing.store, PRESETS["paper"])
    report = report_of(items_named(["long-training", "forms"]), paper)
    *_, papers, own, _ = report.sections
    assert (papers.title, own.title) == ("The claims", "Claims of our own")
    assert [each.own for each in papers.items[1:]] == [False] and all(each.own for each in own.items[1:])
    assert "Of 1 claims 0 hold, 0 do not, 0 are undecided and 1 was not run." in report.lead.text
    assert "Of 7 claims of our own 0 hold, 0 do not, 0 are undecided and 7 were not run." in report.lead.text
    alone = report_of(items_named(["forms"]), paper)
    assert "The claims" not in [section.title for section in alone.sections] and "Of 7 claims of" in alone.lead.text


def test_runs_that_differ_in_form_or_samples_alone_are_told_apart():
    usual = {"samples": 400, "strength": 5.0}
    rotated = paper_spec("permuted-digits", "EWC", form="rotated", form_settings={"damping": 0.01}, **usual)
    assert _described(rotated).endswith("batch 64, rotated (damping 0.01), 400 samples")
    assert _described(paper_spec("permuted-digits", "EWC", strength=5.0)).endswith("batch 64")
    watched = paper_spec("permuted-digits", "EWC", watch=("SOS",), **usual)
    assert _described(watched).endswith("batch 64, watched by SOS")


@pytest.mark.parametrize(
    ("answers", "said"),
    [
        (["holds", "holds", "does not hold"], "Of 3 claims 2 hold, 1 do not, 0 are undecided and 0 were not run."),
        (["undecided", "holds", "not run"], "Of 3 claims 1 hold, 0 do not, 1 is undecided and 1 was not run."),
        (["undecided", "undecided"], "Of 2 claims 0 hold, 0 do not, 2 are undecided and 0 were not run."),
    ],
)
def test_claims_are_counted_by_their_verdicts(answers, said):
    assert counted([Verdict("A", "It holds.", answer, "2", "above 1", "No runs.") for answer in answers]) == said
