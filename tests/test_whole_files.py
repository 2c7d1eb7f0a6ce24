"""Files are whole or absent."""

import os

import pytest
import torch

from anchorhold.errors import StateError
from anchorhold.whole_files import read_tensors, remove_unfinished, write_tensors, write_whole


def test_a_file_that_cannot_be_written_leaves_the_old_one_and_nothing_else(tmp_path, monkeypatch):
    path = tmp_path / "kept"
    write_whole(path, b"old")

    def fail(descriptor):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises(OSError, match="No space"):
        write_whole(path, b"new")
    assert path.read_bytes() == b"old"
    assert [path.name for path in tmp_path.iterdir()] == ["kept"]


def test_what_a_killed_process_left_is_removed_and_nothing_else(tmp_path):
    (tmp_path / ".result.json.1234.part").write_bytes(b"half")
    write_whole(tmp_path / "result.json", b"whole")
    remove_unfinished(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["result.json"]


def test_tensors_that_share_memory_are_written(tmp_path):
    tensor = torch.arange(6.0).view(2, 3)
    write_tensors(tmp_path / "t", {"a": tensor, "b": tensor.t()}, {"note": "both"})
    tensors, text = read_tensors(tmp_path / "t")
    assert torch.equal(tensors["a"], tensor) and torch.equal(tensors["b"], tensor.t())
    assert text == {"note": "both"}


@pytest.mark.parametrize("content", [b"", b"\x00" * 4, b"not tensors at all"])
def test_something_else_is_refused(tmp_path, content):
    (tmp_path / "t").write_bytes(content)
    with pytest.raises(StateError, match="not a whole safetensors file"):
        read_tensors(tmp_path / "t")
