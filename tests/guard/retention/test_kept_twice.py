"""Inputs that are kept and that importance was measured from, too: told once, in either order, by checksums alone."""

import copy
import warnings

import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset

import anchorhold
from anchorhold.retention import kept_set
from anchorhold.retention.kept_set import SampleMarks, marks_of
from anchorhold.tensors.summaries import row_checksums
from tests.guard.helpers import batch, net
from tests.helpers import grouped

OLD = batch(9, 40)
TWICE = "{} of {} inputs of the kept set 'old' are ones that importance was measured from"


def said_of(*calls, measure="EWC", **options):
    """What is told while a new guard is asked for all of it."""
    guard = anchorhold.Guard(net(), measure, strength=1.0, **grouped(**options))
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        for call in calls:
            call(guard)
    assert {each.filename for each in told} <= {__file__}
    return [str(each.message) for each in told]


def consolidate(given):
    return lambda guard: guard.consolidate(given)


def keep(given, name="old"):
    return lambda guard: guard.keep(given, name)


@pytest.mark.parametrize("form", ["diagonal", "rotated"])
def test_it_is_told_once_in_either_order_whatever_the_batches(form):
    x, y = OLD
    loader = DataLoader(TensorDataset(x, y), batch_size=7, shuffle=True)
    for calls in (
        [consolidate([OLD]), keep(loader)],
        [keep(x), consolidate(loader), consolidate([batch(3)])],
        [keep([OLD]), consolidate([OLD]), consolidate([OLD])],
    ):
        (said,) = (each for each in said_of(*calls, form=form) if not each.startswith("consolidate() again"))
        assert said.startswith(TWICE.format(40, 40)) and "Keep inputs that were neither trained on" in said


def test_others_are_not_told_of_nor_a_few_that_are_alike():
    x = OLD[0]
    assert said_of(consolidate([OLD]), keep([batch(10, 40)]), consolidate([batch(11, 40)])) == []
    few = torch.cat([x[:3], batch(10, 37)[0]])
    assert said_of(consolidate([OLD]), keep(few)) == []
    some = torch.cat([x[:4], batch(10, 36)[0]])
    assert said_of(consolidate([OLD]), keep(some))[0].startswith(TWICE.format(4, 40))
    assert said_of(keep([OLD]), consolidate([OLD]), measure="L2") == []  # which looks at no data
    assert said_of(keep([OLD]), lambda guard: guard.rehearse([OLD])) == []


def test_only_what_was_measured_from_counts():
    x = OLD[0]
    some = anchorhold.Fisher(samples=8)
    assert said_of(consolidate([OLD]), keep(x[8:]), measure=some) == []
    assert said_of(consolidate([OLD]), keep(x[4:16]), measure=some)[0].startswith(TWICE.format(4, 12))
    assert said_of(consolidate([OLD, batch(5)]), keep(x[8:]), measure=anchorhold.Fisher(samples=8)) == []


def test_a_consolidation_that_fails_marks_nothing():
    guard = anchorhold.Guard(net(), "EWC", strength=1.0)
    with pytest.raises(anchorhold.errors.NotFiniteError):
        guard.consolidate([OLD, (OLD[0] * float("nan"), OLD[1])])
    guard.keep([OLD], "old")


def test_no_state_has_the_marks_and_a_copy_of_the_guard_does():
    guard = anchorhold.Guard(net(), "EWC", strength=1.0)
    guard.consolidate([batch(1)])
    plain = {key for key in guard.state_dict() if key != "tensors"}
    guard.consolidate([OLD])
    assert {key for key in guard.state_dict() if key != "tensors"} == plain
    with pytest.warns(anchorhold.AnchorholdWarning, match="measured from"):
        copy.deepcopy(guard).keep([OLD], "old")


def test_so_many_are_marked_and_of_so_many_tasks(monkeypatch):
    monkeypatch.setattr(kept_set, "MOST_MARKED", 10)
    monkeypatch.setattr(kept_set, "MOST_TASKS", 2)
    marks, x = SampleMarks(), torch.arange(60.0).view(30, 2)
    marks.note(x[:8])
    marks.note(x[8:])
    assert marks.shared_with(marks_of([x[:10]])) == 10 and marks.shared_with(marks_of([x[10:12]])) == 0
    assert len(marks_of([x[10:12]])) == 2
    assert marks.shared_with(marks_of([x[:6], x[6:30]])) == len(marks_of([x[:6], x[6:30]])) == 10  # and no more
    for _ in range(2):
        marks.take(SampleMarks())
    assert marks.shared_with(marks_of([x[:10]])) == 0


def test_inputs_by_name_are_marked_without_their_labels_and_without_what_all_share():
    x, y = OLD
    mask = torch.ones(3, 3)
    marks = SampleMarks()
    marks.note({"a": x, "mask": mask, "labels": y})
    assert marks.shared_with(marks_of([{"a": x[5:9], "mask": mask}])) == 4
    other = marks_of([{"a": x[5:9] + 1, "mask": mask}])
    assert marks.shared_with(other) == 0 and len(other) == 4


def test_kept_inputs_are_marked_once_however_many_tasks_follow(monkeypatch):
    guard = anchorhold.Guard(net(), "EWC", strength=1.0)
    guard.keep([OLD], "old")
    marked = []
    monkeypatch.setattr(kept_set, "marks_of", lambda batches: marked.append(1) or marks_of(batches))
    for seed in (1, 2):
        guard.consolidate([batch(seed)])
    assert len(marked) == 1
    with pytest.warns(anchorhold.AnchorholdWarning, match="measured from"):
        guard.consolidate([OLD])  # and are compared at every one
    assert len(marked) == 1


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.int64, torch.uint8, torch.bool])
def test_rows_have_numbers_of_their_own_whatever_they_hold(dtype):
    rows = torch.randint(0, 200, (64, 9), generator=torch.Generator().manual_seed(0))
    rows = (rows % 2).bool() if dtype == torch.bool else rows.to(dtype)
    distinct = len({tuple(row) for row in rows.tolist()})
    found = row_checksums([rows])
    assert len(set(found.tolist())) == distinct
    assert torch.equal(row_checksums([rows[3:5]]), found[3:5])
    assert not torch.equal(row_checksums([rows, rows[:, :1]]), found)


def test_long_rows_are_told_by_some_of_their_elements():
    rows = torch.randn(4, 3, 100, 100, generator=torch.Generator().manual_seed(0))
    other = rows.clone()
    other[2] += 1
    assert (row_checksums([rows]) == row_checksums([other])).tolist() == [True, True, False, True]
