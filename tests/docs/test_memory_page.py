"""The page about memory says what a guard really holds."""

import re

import pytest
import torch

import holdfast
from tests.docs.pages import page, run_page
from tests.docs.sizes import held

ROWS = re.findall(
    r"^\| ([\w, -]+) \| (\d+) \| (\d+) \| (\d+) / (\d+) \|$", page("guides/memory.md"), flags=re.MULTILINE
)


def test_its_code_runs():
    run_page("guides/memory.md")


def test_every_measure_has_its_row():
    assert sorted(name for row in ROWS for name in row[0].split(", ")) == sorted(holdfast.measures())


@pytest.mark.parametrize("weights", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("row", ROWS, ids=lambda row: row[0])
def test_the_bytes_are_those_of_real_guards(row, weights):
    names, usual, small, *buffers = row
    working = int(buffers[weights is torch.bfloat16])
    for name in names.split(", "):
        assert held(name, weights, None) == (int(usual), working)
        assert held(name, weights, torch.bfloat16) == (int(small), working)
