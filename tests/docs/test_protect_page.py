"""The page on protection in one call does what it says, and names the defaults that there are."""

import pytest

from anchorhold.integrations.huggingface import NEW_SAMPLES
from anchorhold.protection import Protection
from anchorhold.retention.kept_set import SAMPLES
from tests.docs.pages import page, run_page


@pytest.mark.filterwarnings("ignore:.*classes that")
def test_the_page_runs(capsys):
    scope = run_page("guides/protect.md")
    told = capsys.readouterr()
    assert (
        "training lost" in told.out
        and "new loss a sample + what is lost: " in told.out
        and "Plan of protect()" in told.err
    )
    assert scope["guard"].report is scope["report"]


def test_the_page_has_the_defaults():
    text, settings = page("guides/protect.md"), Protection()
    assert f"**{settings.tokens:,} tokens, {settings.tokens // settings.length} pieces of {settings.length}.**" in text
    assert settings.share == 1 / 8 and "**An eighth of each step distils.**" in text
    assert f"the first {settings.measured} of the others" in text
    assert f"Time to measure: {settings.seconds:g} seconds" in text
    assert f"reads the first {SAMPLES} samples, the callback {NEW_SAMPLES}" in text
    assert settings.exchange_rate == 1 and "an exchange rate of 1" in text
