"""The pages of results are what their programs make of the data beside them."""

import pytest

from scripts.result_pages import NO_DATA, RESULTS, pages, same
from studies.exchange_rate import report as exchange_rate
from studies.pretrained.report import read

MADE = pages()
SLOW = {"merged-space", "tolerance-dual"}
IN_CLAIMS_TEST = {"paper/claims", "paper/searches"}  # of tests/studies/benzing2020, which loads the runs once


@pytest.mark.daily
@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=pytest.mark.nightly) if name in SLOW else name
        for name in sorted(MADE.keys() - IN_CLAIMS_TEST)
    ],
)
def test_a_page_is_what_its_data_make(name):
    """``python -m scripts.result_pages`` writes the pages anew."""
    assert same((RESULTS / f"{name}.md").read_text(encoding="utf-8"), MADE[name]())


def test_a_changed_number_is_found():
    page = (RESULTS / "step.md").read_text(encoding="utf-8")
    assert not same(page.replace("1.22", "1.23"), MADE["step"]())


def test_every_page_is_made_or_has_a_reason():
    known = {str(path.relative_to(RESULTS).with_suffix("")) for path in RESULTS.rglob("*.md") if path.stem != "README"}
    assert known == set(MADE) | set(NO_DATA)


def test_the_answer_about_exchange_rates_is_what_the_rows_make():
    rows = [read(RESULTS.parent / path) for path in (exchange_rate.ROWS, exchange_rate.PRETRAINED)]
    readme = (RESULTS.parent / "studies" / "exchange_rate" / "README.md").read_text(encoding="utf-8")
    assert exchange_rate.answer(*rows) in readme.splitlines()
