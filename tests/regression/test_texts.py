"""What is printed and told stays as it was recorded: ``texts.json``, beside the numbers, since names change more often.

``python -m tests.regression.texts`` names what is said otherwise now, and takes it over with ``--replace``.
"""

import json
from pathlib import Path

import pytest
import torch

from tests.regression.texts import FILE, TEXTS, text_of

RECORDS = json.loads(Path(FILE).read_text(encoding="utf-8"))


@pytest.fixture(autouse=True)
def one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def test_every_situation_is_recorded_and_says_something():
    assert RECORDS.keys() == TEXTS.keys()
    assert all(RECORDS.values())


@pytest.mark.parametrize("name", TEXTS)
def test_the_same_is_said(name):
    assert text_of(name) == RECORDS[name]
