"""The lock of a run: one holder, be it of this process or another, and none once the holder was killed."""

import errno
import fcntl
import os
import stat
import threading

import pytest

from anchorhold.errors import StoreError
from anchorhold_lab.experiments import Store
from anchorhold_lab.experiments.store.locks import Lock
from tests.lab.experiments import children
from tests.lab.experiments.children import Child
from tests.lab.experiments.helpers import small_spec


@pytest.fixture
def path(tmp_path):
    return tmp_path / "lock"


def test_one_holder_at_a_time_within_a_process(path):
    first, second = Lock(path), Lock(path)
    assert first.take() and not second.take() and not first.take()
    first.release()
    assert second.take() and not first.take()
    second.release()


def test_a_killed_process_frees_it_and_the_file_stays(path):
    child = Child(children.hold, path)
    assert child.hear() is True
    lock = Lock(path)
    assert not lock.take() and lock.is_held()
    child.process.kill()
    child.end()
    assert lock.is_held() is False and lock.take()
    lock.release()
    assert path.exists()


def test_one_that_was_given_up_keeps_nobody_out(path):
    lock = Lock(path)
    lock.release()  # of one that was never taken
    assert lock.take()
    lock.release()
    lock.release()
    child = Child(children.hold, path)
    assert child.hear() is True
    child.process.kill()
    child.end()


def test_another_thread_may_release_it_and_none_may_take_it_twice(path):
    lock, found = Lock(path), []
    assert lock.take()
    threads = [threading.Thread(target=lambda: found.append(Lock(path).take())) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == [False] * 4
    releasing = threading.Thread(target=lock.release)
    releasing.start()
    releasing.join()
    other = Lock(path)
    assert other.take()
    other.release()


def test_looking_whether_it_is_held_leaves_nothing_behind(path):
    assert Lock(path).is_held() is False
    assert not path.exists()
    lock = Lock(path)
    assert lock.take() and lock.is_held() and Lock(path).is_held()
    lock.release()
    assert lock.is_held() is False and lock.take()
    lock.release()


def test_those_of_the_same_group_may_lock_it_where_the_umask_says_so(path):
    before = os.umask(0o002)
    try:
        lock = Lock(path)
        assert lock.take()
        lock.release()
    finally:
        os.umask(before)
    assert stat.S_IMODE(path.stat().st_mode) == 0o664


def test_a_folder_that_is_not_there_is_an_error_of_the_system(tmp_path):
    with pytest.raises(OSError):
        Lock(tmp_path / "none" / "lock").take()


def test_a_file_system_without_locks_is_told_and_not_taken_for_a_lock(tmp_path, monkeypatch):
    def missing(descriptor, operation):
        raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS))

    monkeypatch.setattr(fcntl, "flock", missing)
    with pytest.warns(UserWarning, match="flock not supported"), pytest.raises(StoreError, match="has no locks"):
        Store(tmp_path).claim(small_spec())
    assert Lock(tmp_path / "runs" / small_spec().id / "lock").is_held() in (False, None)
