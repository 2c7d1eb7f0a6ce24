"""Killed, racing, full, read-only, out of memory: what was finished stays, and what was not goes on."""

import random
import signal
import subprocess
import tempfile
from pathlib import Path

import pytest

from anchorhold.errors import StoreError
from anchorhold_lab.experiments import Store, execute
from tests.lab.experiments import children
from tests.lab.experiments.children import CONTEXT, Child
from tests.lab.experiments.helpers import same_result, small_spec

KILLS = 25


def files(store):
    """Every result's identity: another one, or a new modification time, is another writing."""
    found = {path: path.stat() for path in store.folder.glob("runs/*/result.json")}
    return {path: (stat.st_ino, stat.st_mtime_ns) for path, stat in found.items()}


@pytest.mark.nightly
def test_25_kills_at_random_moments_change_nothing(tmp_path):
    """Three runs, 48 epochs each, a checkpoint after every one; each process is killed after zero to six events.

    It may be two events ahead when it is killed, and no more, so that 25 times it has something left to do.
    """
    specs = [small_spec(seed, epochs=16, watch=("SOS", "EWC")) for seed in range(3)]
    undisturbed = Store(tmp_path / "undisturbed")
    execute(specs, undisturbed)
    store = Store(tmp_path / "killed")
    chance = random.Random(4)
    seen = {}
    for _ in range(KILLS):
        events = chance.randint(0, 6)
        child = Child(children.run_all, store.folder, specs, None, events + 2)
        for _ in range(events):
            child.hear()
        child.process.join(timeout=chance.uniform(0, 0.02))  # in the middle of a step, or of writing
        child.process.kill()
        assert child.end() == -signal.SIGKILL, "it had finished before it could be killed"
        now = files(store)
        assert seen.items() <= now.items(), "a result was lost or written again"
        seen = now
    last = Child(children.run_all, store.folder, specs)
    assert last.end() == 0
    assert seen.items() <= files(store).items()
    assert len(files(store)) == len(specs)
    for spec in specs:
        assert same_result(store.get(spec.id), undisturbed.get(spec.id))
        assert store.failures(spec.id) == []
    assert sum(result.resumed for result in store.results()) >= 5
    assert not list(store.folder.glob("**/*.safetensors")) and not list(store.folder.glob("**/.*"))


def test_two_processes_that_race_make_every_run_once(tmp_path):
    specs = [small_spec(seed) for seed in range(8)]
    barrier = CONTEXT.Barrier(2)
    racing = [Child(children.run_all, tmp_path / "store", specs, barrier) for _ in range(2)]
    finished = []
    for child in racing:
        while (told := child.hear()) is not None:
            finished += [told[1]] if told[0] == "RunFinished" else []
        assert child.end() == 0
    assert sorted(finished) == sorted(spec.id for spec in specs)
    alone = Store(tmp_path / "alone")
    execute(specs, alone)
    for spec in specs:
        assert same_result(Store(tmp_path / "store").get(spec.id), alone.get(spec.id))


SMALL, LARGE = small_spec(hidden=(8,)), small_spec(hidden=(2000,))
"""Checkpoints of 30 KB and of 4 MB."""
ROOM = 400_000


def check_that_nothing_is_damaged(store, message):
    assert str(store.folder / "runs" / LARGE.id) in message
    assert "could not be written" in message and "start again" in message
    assert [result.spec for result in store.results()] == [SMALL]
    assert store.status(LARGE.id) == "started"
    assert not list(store.folder.glob("**/.*")), "something half-written was left"


def check_that_it_goes_on(store):
    before = files(store)
    assert [result.spec for result in execute([SMALL, LARGE], store).finished] == [LARGE]
    assert before.items() <= files(store).items()


def test_files_that_cannot_grow(tmp_path):
    store = Store(tmp_path / "store")
    child = Child(children.run_within_file_size, store.folder, [SMALL, LARGE], ROOM)
    message = child.hear()
    assert child.end() == 0
    check_that_nothing_is_damaged(store, message)
    check_that_it_goes_on(store)


def mount(*words):
    return subprocess.run(["mount", *words], check=False, capture_output=True, text=True)


def test_a_full_disk(tmp_path):
    disk = tmp_path / "disk"
    disk.mkdir()
    done = mount("-t", "tmpfs", "-o", f"size={ROOM}", "tmpfs", str(disk))
    if done.returncode:
        pytest.skip(f"a small file system cannot be mounted here: {done.stderr.strip()}")
    try:
        store = Store(disk / "store")
        with pytest.raises(StoreError, match="No space left on device") as error:
            execute([SMALL, LARGE], store)
        check_that_nothing_is_damaged(store, str(error.value))
        assert mount("-o", f"remount,size={100 * ROOM}", str(disk)).returncode == 0
        check_that_it_goes_on(store)
    finally:
        subprocess.run(["umount", str(disk)], check=True)


def test_a_store_that_may_only_be_read():
    with tempfile.TemporaryDirectory() as folder:  # pytest's own folders cannot even be read by others
        store = Store(Path(folder) / "store")
        execute([SMALL], store)
        before = files(store)
        for path in [Path(folder), *Path(folder).rglob("*")]:
            path.chmod(0o555 if path.is_dir() else 0o444)
        try:
            child = Child(children.run_without_rights, store.folder, [SMALL, LARGE])
            assert child.hear() == "writing fails"
            assert child.hear() == 1  # reading does not
            message = child.hear()
            assert child.end() == 0
            assert "Permission denied" in message and LARGE.id in message
        finally:
            for path in [Path(folder), *Path(folder).rglob("*")]:
                path.chmod(0o755 if path.is_dir() else 0o644)
        assert files(store) == before
        check_that_it_goes_on(store)


def test_a_run_that_is_out_of_memory_fails_alone(tmp_path):
    """Weights of 6 GB where there is 1 GB more to have."""
    store = Store(tmp_path / "store")
    too_large = small_spec(hidden=(40_000, 40_000))
    child = Child(children.run_within_memory, store.folder, [too_large, SMALL], 10**9)
    (reason,) = child.hear()
    assert child.end() == 0
    assert reason.startswith("Out of memory") and "batch_size" in reason
    assert store.failures(too_large.id)[0].reason == reason
    assert [result.spec for result in store.results()] == [SMALL]
