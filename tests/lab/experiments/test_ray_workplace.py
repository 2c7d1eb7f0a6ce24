"""Stores of workers: gone when they end, and when they were killed, as soon as the next one begins."""

import os
import signal
import tempfile
from pathlib import Path

import pytest

from anchorhold_lab.experiments.on_ray.workplace import workplace
from tests.lab.experiments.children import Child


@pytest.fixture(autouse=True)
def temporary(tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return tmp_path


def work_for_good(connection, folder):
    tempfile.tempdir = folder
    with workplace() as store:
        (store.folder / "runs").mkdir()
        connection.send(str(store.folder))
        signal.pause()


def test_nothing_is_left(temporary):
    with workplace() as store:
        assert store.folder.parent == temporary
        (store.folder / "runs").mkdir()
    assert not list(temporary.iterdir())


def test_two_at_once_leave_each_other_alone(temporary):
    with workplace() as one, workplace() as other:
        assert one.folder != other.folder and one.folder.exists()


def test_what_a_killed_worker_left_is_removed_by_the_next(temporary):
    child = Child(work_for_good, str(temporary))
    left = Path(child.hear())
    with workplace():
        assert left.exists()  # it is at work
    os.kill(child.process.pid, signal.SIGKILL)
    child.end()
    assert left.exists()
    with workplace():
        assert not left.exists()
