"""What is printed and told stays as it was recorded: ``texts.json``, beside the numbers, since names change more often.

``python -m tests.regression.texts`` names what is said otherwise now, and takes it over with ``--replace``.
"""

import json
from pathlib import Path

import pytest

from tests.regression.texts import FILE, TEXTS, text_of

pytestmark = pytest.mark.usefixtures("one_thread")
RECORDS = json.loads(Path(FILE).read_text(encoding="utf-8"))


def test_every_situation_is_recorded_and_says_something():
    assert RECORDS.keys() == TEXTS.keys()
    assert all(RECORDS.values())


@pytest.mark.parametrize("name", TEXTS)
def test_the_same_is_said(name):
    assert text_of(name) == RECORDS[name]
