"""The page about memory says what a guard really holds."""

import re

import pytest
import torch

import anchorhold
from tests.docs.pages import page, run_page
from tests.docs.sizes import held

PAIR = r" \| (\d+) / (\d+)"
ROWS = re.findall(rf"^\| ([\w, -]+){3 * PAIR} \|$", page("guides/memory.md"), flags=re.MULTILINE)
CLAMPED = re.findall(rf'^\| the same with `clamp="total"`{3 * PAIR} \|$', page("guides/memory.md"), flags=re.MULTILINE)

PACKED = re.findall(r"^\| ([\w, -]+) \| (\d+) / (\d+) \|$", page("guides/memory.md"), flags=re.MULTILINE)


def test_its_code_runs():
    run_page("guides/memory.md")


def test_every_measure_has_its_row():
    assert sorted(name for row in ROWS for name in row[0].split(", ")) == sorted(anchorhold.measures.default_measures())


@pytest.mark.daily
@pytest.mark.parametrize("weights", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("row", ROWS, ids=lambda row: row[0])
def test_the_bytes_are_those_of_real_guards(row, weights):
    for name in row[0].split(", "):
        assert_holds(name, weights, row[1:])


@pytest.mark.daily
@pytest.mark.parametrize("weights", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("measure", [anchorhold.SI, anchorhold.SIU, anchorhold.SIB])
def test_a_total_that_is_clamped_in_the_end_has_its_own_row(measure, weights):
    (row,) = CLAMPED
    assert_holds(measure(clamp="total"), weights, row)


@pytest.mark.parametrize("row", PACKED, ids=lambda row: row[0])
@pytest.mark.parametrize("weights", [torch.float32, torch.bfloat16])
def test_the_bytes_in_8_bits_are_those_that_a_guard_tells(row, weights):
    model = torch.nn.Linear(500, 1000, dtype=weights)
    for name in row[0].split(", "):
        guard = anchorhold.Guard(model, name, options=anchorhold.GuardOptions(state_dtype="8bit"))
        cost, along_the_path = guard.cost(), anchorhold.measures.default_measures()[name].needs.path
        told = (cost.kept + cost.measuring * along_the_path) / cost.weights
        assert told == pytest.approx(int(row[1 + (weights is torch.bfloat16)]), rel=0.01)


def test_there_are_rows_of_8_bits():
    assert len(PACKED) == 3


def assert_holds(measure, weights, row):
    usual, small, working = (int(pair[weights is torch.bfloat16]) for pair in (row[:2], row[2:4], row[4:]))
    assert held(measure, weights, None) == (usual, working)
    assert held(measure, weights, torch.bfloat16) == (small, working)
