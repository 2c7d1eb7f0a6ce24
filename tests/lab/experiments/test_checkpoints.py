"""Checkpoints: the latest that is whole and belongs here, and none is ever lost."""

import pytest
import torch

from anchorhold_lab.experiments.store import checkpoints as module
from anchorhold_lab.experiments.store.checkpoints import Checkpoint, Checkpoints, has_checkpoint

CPU = torch.device("cpu")


def make(folder, number=0, runs=("a",)):
    return Checkpoints(folder, runs, CPU), Checkpoint({"weights": torch.full((4,), float(number))}, number=number)


def saved(folder):
    """Return checkpoints: number 1 after a task, number 2 within the next."""
    for number, finished in ((1, True), (2, False)):
        checkpoints, checkpoint = make(folder, number)
        checkpoints.save(checkpoint, finished_task=finished)
        checkpoints.wait()
    return checkpoints


def test_the_latest_is_taken(tmp_path):
    checkpoints = saved(tmp_path)
    found, rejected = checkpoints.load()
    assert found.number == 2 and torch.equal(found.state["weights"], torch.full((4,), 2.0))
    assert rejected == []


def test_what_goes_wrong_in_writing_is_told_at_the_next_opportunity(tmp_path):
    checkpoints = saved(tmp_path)
    within = tmp_path / "within-task.safetensors"
    within.unlink()
    within.mkdir()  # no file can take its place
    checkpoints.save(make(tmp_path, 3)[1], finished_task=False)
    with pytest.raises(IsADirectoryError):
        checkpoints.save(make(tmp_path, 4)[1], finished_task=True)
    checkpoints.close()
    within.rmdir()
    assert checkpoints.load()[0].number == 1


def test_a_finished_task_takes_the_place_of_what_was_within_it(tmp_path):
    checkpoints = saved(tmp_path)
    checkpoints.save(make(tmp_path, 3)[1], finished_task=True)
    checkpoints.wait()
    assert [path.name for path in tmp_path.iterdir()] == ["finished-task.safetensors"]
    assert checkpoints.load()[0].number == 3


def test_an_older_one_that_could_not_be_removed_in_time_is_not_taken(tmp_path):
    checkpoints = saved(tmp_path)
    within = (tmp_path / "within-task.safetensors").read_bytes()
    checkpoints.save(make(tmp_path, 3)[1], finished_task=True)
    checkpoints.wait()
    (tmp_path / "within-task.safetensors").write_bytes(within)
    assert checkpoints.load()[0].number == 3


@pytest.mark.parametrize("damage", ["truncated", "flipped", "empty"])
def test_a_damaged_one_is_kept_aside_and_the_one_before_is_taken(tmp_path, damage):
    checkpoints = saved(tmp_path)
    path = tmp_path / "within-task.safetensors"
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes({"truncated": content[:-3], "flipped": content, "empty": b""}[damage])
    damaged = path.read_bytes()
    found, (rejected,) = checkpoints.load()
    assert found.number == 1
    assert "within-task" in rejected.reason
    assert rejected.kept.read_bytes() == damaged
    assert not path.exists()


def test_none_that_was_set_aside_is_overwritten(tmp_path):
    for _ in range(2):
        checkpoints = saved(tmp_path)
        (tmp_path / "within-task.safetensors").write_bytes(b"")
        checkpoints.load()
    checkpoints.discard()
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "rejected-1-within-task.safetensors",
        "rejected-2-within-task.safetensors",
    ]
    assert not has_checkpoint(tmp_path)


def test_one_of_other_runs_or_versions_is_not_taken(tmp_path, monkeypatch):
    saved(tmp_path)
    found, rejected = make(tmp_path, runs=("a", "b"))[0].load()
    assert found is None and "was made with runs ['a']" in rejected[0].reason
    saved(tmp_path)
    monkeypatch.setattr(module, "versions", lambda: {**module_versions, "torch": "1.0"})
    found, rejected = make(tmp_path)[0].load()
    assert found is None and "here it is 1.0" in rejected[0].reason


module_versions = module.versions()
