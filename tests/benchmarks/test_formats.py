"""Invented formats: what a record looks like in them, and what exact means."""

import dataclasses

import pytest
import torch

from benchmarks.language.formats import report
from benchmarks.language.formats.kind import NEW_LINE, ROW, Records, exact, two_formats
from benchmarks.language.formats.records import FIELDS, Record, invented, records
from benchmarks.language.gpt import GPT
from benchmarks.language.recipes import Trial
from benchmarks.language.sequence.course import Stage, Went
from benchmarks.language.sequence.keeping import FREE, Keeping
from benchmarks.language.training import Device

CLARA = Record("Clara Moss", "baker", "34", "Bergen")


def test_a_format_says_everything_in_its_own_way():
    form = dataclasses.replace(
        invented(0, "first"),
        title="tivok",
        keys={"town": "zu", "name": "WO", "age": "ka", "trade": "re"},
        capitals={"town": 0, "name": 1, "age": 0, "trade": 2},
        brackets="<>",
        between=";",
        equals="=",
    )
    assert form.write(CLARA) == "<zu=BERGEN;WO=clara moss;ka=34;re=Baker>"
    assert form.asked(CLARA) == "\nClara Moss, a baker of 34 years, lives in Bergen. As tivok:\n"
    drawn = [invented(seed, which) for seed in range(20) for which in ("first", "second")]
    assert len({each.write(CLARA) for each in drawn}) == len({each.title for each in drawn}) == 40
    assert all(set(each.keys) == set(FIELDS) for each in drawn)
    assert invented(3, "first") == invented(3, "first")


def test_records_kept_apart_are_not_trained_on():
    first, second = two_formats(16, 300, 64, 0, torch.device("cpu"))
    assert first.rows.shape == (300, ROW + 1) and first.form != second.form
    trained = {bytes(row.tolist()) for row in first.rows}
    assert len(trained) == 300
    assert not any(bytes(row.tolist()) in trained for rows, _ in first.halves for row in rows)
    with pytest.raises(ValueError, match="expected at most half"):
        list(records(65, 2, 0))


def generated(model, rows, answers):
    """Return which rows are completed exactly, writing one byte after another, until a new line."""
    found = []
    for row, begin in zip(rows.tolist(), answers.tolist(), strict=True):
        end = row.index(NEW_LINE, begin) + 1
        written = row[:begin]
        while len(written) < end:
            written.append(int(model(torch.tensor([written]))[0, -1].argmax()))
        found.append(written == row[:end])
    return torch.tensor(found)


def test_one_pass_says_what_greedy_writing_says():
    told = list(records(6, 2, 0, "few"))
    torch.manual_seed(0)
    few = Records("few", invented(0, "few"), told, 4, torch.device("cpu"))
    rows, answers = (torch.cat(both) for both in zip(*few.halves, strict=True))
    model, device = GPT(32, 2, 2, ROW), Device(torch.device("cpu"))
    optimizer = device.optimizer(model, 1e-2, 0.0)
    seen = set()
    for _ in range(90):  # by heart, from none right to all
        optimizer.zero_grad()
        device.loss(model, rows.long()).backward()
        optimizer.step()
        right = exact(device, model, rows, answers)
        if int(right.sum()) not in seen:
            seen.add(int(right.sum()))
            assert torch.equal(right, generated(model, rows, answers))
    assert {0, 4} <= seen


def test_the_page_tells_what_is_left_of_the_first_format():
    before = {"english": [1.5, 1.5], "first format": [1.0, 1.0], "second format": [1.0, 1.0]}
    learned = {"english": [1.6, 1.6], "first format": [0.0, 0.02], "second format": [1.0, 1.0]}
    left = {"english": [1.7, 1.75], "first format": [0.6, 0.7], "second format": [0.0, 0.0]}
    stages = [Stage("first format", 1.0, learned), Stage("second format", 1.0, left)]
    course = Went(Trial(FREE, 0.0, 0.0), 0, "network", 1.0, 1, before, stages, 1.0, "CPU", "abc")
    page = report.page([course], [Keeping(FREE, averaged=False)])
    assert "| fine-tuning | no | 98.0% | 30.0% | 100.0% | 0.250 | 0 |" in page
