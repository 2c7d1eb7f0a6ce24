"""The index of a store says what its files say, whatever happens to either of them."""

import json
import os
import shutil
import subprocess
import sys
import threading
from pathlib import Path

import pytest

import anchorhold
from anchorhold import registry
from anchorhold.errors import DamagedError
from anchorhold_lab.experiments import Failure, Store, load_source, paper_spec
from anchorhold_lab.experiments.store.listing import index, reading_rows
from anchorhold_lab.experiments.store.listing.making_rows import RowMaker
from anchorhold_lab.experiments.store.listing.reading_rows import rows_in, told_apart
from anchorhold_lab.experiments.store.packed import OBSERVATIONS, RESULTS
from anchorhold_lab.experiments.store.packing import pack, unpack
from anchorhold_lab.experiments.store.run_files import RunFiles
from tests.lab.experiments.helpers import result_of, small_spec
from tests.lab.experiments.study_file import write_study

FINISHED, WATCHED, FAILED, STARTED = (
    small_spec(0),
    small_spec(1, watch=("EWC",), strength=3.0),
    small_spec(2, measure="EWC"),
    small_spec(3),
)


@pytest.fixture(autouse=True)
def for_few_runs_of_any_age(monkeypatch):
    """A store of four runs gets an index, and files that were only just written count as settled."""
    monkeypatch.setattr(reading_rows, "MANY", 1)
    monkeypatch.setattr(reading_rows, "FEW", 0)
    monkeypatch.setattr(index, "_TICK", -(10**15))


@pytest.fixture
def folder(tmp_path):
    store = Store(tmp_path / "store")
    for spec in (FINISHED, WATCHED):
        claim = store.claim(spec)
        claim.finish(result_of(spec, 0.5))
        claim.release()
    for spec in (FAILED, STARTED):
        claim = store.claim(spec)
        if spec is FAILED:
            claim.fail(Failure("too bad", "2026-01-01T00:00:00", "cpu", None, {}))
        claim.release()
    return store.folder


def from_files(folder):
    """The rows as every file says, with no index at all."""
    maker, store = RowMaker(folder), Store(folder)
    return sorted((maker.row_of(store.entry(run)) for run in store.ids()), key=lambda row: row.order)


@pytest.fixture
def reads(monkeypatch):
    """The runs whose files are read."""
    seen = []
    entry = Store.entry

    def counted(store, run):
        seen.append(run)
        return entry(store, run)

    monkeypatch.setattr(Store, "entry", counted)
    return seen


def test_the_rows_are_those_of_the_files_and_the_second_time_none_is_read(folder, reads):
    expected = from_files(folder)
    assert [row.status for row in expected[:2]] == ["finished", "finished"]
    assert {row.id: row.status for row in expected[2:]} == {FAILED.id: "failed", STARTED.id: "started"}
    reads.clear()
    assert rows_in(folder) == expected
    assert len(reads) == 4
    assert rows_in(folder) == expected
    assert len(reads) == 4
    (first,) = [row for row in expected if row.id == FINISHED.id]
    assert (first.seed, first.setting["measure"], first.figures.average_accuracy) == (0, "SI", 0.5)
    assert {"epochs", "hidden", "tasks"} <= set(first.unusual) and "strength" not in first.unusual


def test_equal_settings_are_one_object(folder):
    Store(folder).claim(small_spec(7)).finish(result_of(small_spec(7), 0.4))
    for _ in range(2):
        rows = {row.id: row for row in rows_in(folder)}
        assert rows[FINISHED.id].setting is rows[small_spec(7).id].setting is rows[STARTED.id].setting
        assert rows[FINISHED.id].setting is not rows[WATCHED.id].setting


def change_in_place(path, old, new):
    """Change a file and keep its length, its inode and, as far as anybody can, its times."""
    before = path.stat()
    text = path.read_text()
    assert old in text and len(old) == len(new)
    with path.open("r+") as file:
        file.write(text.replace(old, new))
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert (path.stat().st_size, path.stat().st_mtime_ns) == (before.st_size, before.st_mtime_ns)


def test_a_file_that_was_changed_without_a_trace_is_read_again(folder, reads):
    rows_in(folder)
    reads.clear()
    change_in_place(folder / "runs" / FINISHED.id / "result.json", '"a device"', '"b device"')
    found = {row.id: row for row in rows_in(folder)}
    assert reads == [FINISHED.id]
    assert found[FINISHED.id].status == "damaged" and "checksum" in found[FINISHED.id].damage
    assert list(found.values()) == from_files(folder)


def test_one_that_was_replaced_or_removed_or_added_is_seen(folder):
    rows_in(folder)
    path = folder / "runs" / FINISHED.id / "result.json"
    content = path.read_text()
    path.unlink()
    assert {row.id: row.status for row in rows_in(folder)}[FINISHED.id] == "started"
    path.write_text(content[:50])
    assert {row.id: row.status for row in rows_in(folder)}[FINISHED.id] == "damaged"
    path.write_text(content)
    assert {row.id: row.status for row in rows_in(folder)}[FINISHED.id] == "finished"
    for file in path.parent.iterdir():
        file.unlink()
    path.parent.rmdir()
    assert FINISHED.id not in {row.id for row in rows_in(folder)}
    added = small_spec(9)
    Store(folder).claim(added).finish(result_of(added, 0.5))
    assert added.id in {row.id for row in rows_in(folder)}


def test_observations_that_are_gone_are_missed(tmp_path):
    spec, store = small_spec(probes=("importances",)), Store(tmp_path)
    store.claim(spec).finish(result_of(spec, 0.5), {"importances": {}})
    assert [row.status for row in rows_in(tmp_path)] == ["finished"]
    (tmp_path / "runs" / spec.id / "observations.safetensors").unlink()
    (row,) = rows_in(tmp_path)
    assert row.status == "damaged" and "observations.safetensors is missing" in row.damage
    assert row.figures is not None  # which count all the same


def test_what_is_damaged_is_never_taken_into_the_index(folder, reads):
    (folder / "runs" / FAILED.id / "spec.json").write_text("[]")
    for _ in range(2):
        reads.clear()
        assert rows_in(folder)[-1].status == "damaged"
    assert reads == [FAILED.id]


def damages(content):
    """Ways in which a file can be broken."""
    yield b""
    yield b"{}"
    yield content[: len(content) // 2]
    yield content + b" "
    yield content.replace(b"0.5", b"0.6", 1)
    yield content.partition(b"\n")[2]
    for place in range(0, len(content), 97):
        yield content[:place] + bytes([content[place] ^ 1]) + content[place + 1 :]


def test_a_damaged_index_is_nothing_and_is_made_anew(folder, reads):
    expected = rows_in(folder)
    path = folder / index.FILE
    content = path.read_bytes()
    assert b"0.5" in content
    for damaged in damages(content):
        path.write_bytes(damaged)
        reads.clear()
        assert rows_in(folder) == expected
        assert len(reads) == 4 and path.read_bytes() == content


def test_an_index_of_other_code_is_nothing(folder, reads, monkeypatch):
    rows_in(folder)
    for name, value in (("_code", lambda: "another"), ("_LAYOUT", 2)):
        with monkeypatch.context() as other:
            other.setattr(index, name, value)
            reads.clear()
            rows_in(folder)
            assert len(reads) == 4


def test_a_folder_that_cannot_be_written_costs_time_alone(folder, reads):
    (folder / index.FILE).mkdir()  # which no file can replace
    for _ in range(2):
        assert rows_in(folder) == from_files(folder)
    assert (folder / index.FILE).is_dir()
    assert [path.name for path in folder.iterdir() if path.name.startswith(".")] == []


def test_what_has_only_just_changed_is_not_taken_in(folder, reads, monkeypatch):
    """It may change again within the same tick of the clock, and leave no trace of that."""
    monkeypatch.setattr(index, "_TICK", 10**12)
    rows_in(folder)
    reads.clear()
    rows_in(folder)
    assert len(reads) == 4
    monkeypatch.setattr(index, "_TICK", -(10**12))
    rows_in(folder)
    reads.clear()
    rows_in(folder)
    assert reads == []


def test_the_time_that_reading_took_does_not_make_files_older(folder, reads, monkeypatch):
    """What counts is how old a file was when it was read, not when the index was written."""
    monkeypatch.setattr(index, "_TICK", 2 * 10**9)
    now = max(path.stat().st_ctime_ns for path in folder.rglob("*")) + 10 * 10**9
    monkeypatch.setattr(index.Index, "_now", lambda _: now)
    monkeypatch.setattr(index.time, "monotonic_ns", iter([0, 9 * 10**9, 0, 7 * 10**9, 0]).__next__)
    rows_in(folder)  # read nine seconds before the end, when they were one second old
    reads.clear()
    rows_in(folder)  # read seven seconds before: three seconds
    assert len(reads) == 4
    reads.clear()
    rows_in(folder)
    assert reads == []


def test_a_small_store_has_no_index(folder, monkeypatch):
    monkeypatch.setattr(reading_rows, "MANY", 1000)
    rows_in(folder)
    assert not (folder / index.FILE).exists()


def test_what_a_program_registers_by_itself_is_not_taken_in(tmp_path, reads):
    @anchorhold.register_measure("alike")
    class Alike(anchorhold.measures.WeightMeasure):
        def importance(self, parameters):
            return {name: parameter.detach().clone().fill_(1) for name, parameter in parameters.items()}

    spec, store = small_spec(measure="alike"), Store(tmp_path)
    for each in (spec, small_spec()):
        store.claim(each).finish(result_of(each, 0.5))
    for _ in range(2):
        reads.clear()
        assert {row.status for row in rows_in(tmp_path)} == {"finished"}
    assert reads == [spec.id]  # another process could not read it, and would say so


def test_runs_of_a_file_are_as_written_until_the_file_is_loaded(tmp_path, reads):
    load_source(write_study(tmp_path))
    spec, store = paper_spec("blobs", "walk"), Store(tmp_path / "store")
    store.claim(spec).finish(result_of(spec, 0.5))
    for _ in range(2):
        reads.clear()
        (loaded,) = rows_in(store.folder)
        assert reads == [spec.id]
    known = dict(registry._FILES)
    registry._FILES.clear()
    (row,) = rows_in(store.folder)
    reads.clear()
    assert rows_in(store.folder) == [row] and reads == []
    assert row.setting["source"] == spec.source and row.unusual == ("source",)
    registry._FILES.update(known)
    assert rows_in(store.folder) == [loaded] and reads == [spec.id]


def test_many_may_read_and_write_it_at_once(folder):
    expected, found = from_files(folder), []

    def look():
        for _ in range(5):
            found.append(rows_in(folder))
            (folder / index.FILE).unlink(missing_ok=True)

    threads = [threading.Thread(target=look) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 20 and all(rows == expected for rows in found)
    assert not list(folder.glob(".*"))


def test_what_a_killed_writer_left_is_removed_once_it_is_old(folder):
    old, fresh = folder / ".index.json.dead.part", folder / ".index.json.live.part"
    for path in (old, fresh):
        path.touch()
    os.utime(old, (0, 0))
    rows_in(folder)
    assert fresh.exists() and not old.exists()


def test_no_torch_is_needed_where_the_index_knows_all(folder):
    expected = rows_in(folder)
    program = f"""
import json, sys, types
from pathlib import Path
package = types.ModuleType("anchorhold")  # without the names that it offers
package.__path__, package.__file__ = [{str(Path(anchorhold.__file__).parent)!r}], {anchorhold.__file__!r}
sys.modules["anchorhold"], sys.modules["torch"] = package, None
from anchorhold_lab.experiments.store.listing.reading_rows import rows_in
print(json.dumps([row.id for row in rows_in(Path({str(folder)!r}))]))
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == [row.id for row in expected]


def test_the_rows_of_packed_runs_are_those_of_their_files_and_need_no_unpacking(folder, reads, monkeypatch):
    expected = from_files(folder)
    pack(Store(folder))
    assert from_files(folder) == expected
    reads.clear()
    assert rows_in(folder) == expected and len(reads) == 4
    with monkeypatch.context() as never:
        never.setattr(RunFiles, "packed", lambda _: pytest.fail("it was unpacked"))
        assert rows_in(folder) == expected and len(reads) == 4
    unpack(Store(folder))
    reads.clear()
    assert rows_in(folder) == expected and len(reads) == 3


def test_packed_files_that_were_changed_are_read_again(folder, reads):
    pack(Store(folder))
    expected, path = rows_in(folder), folder / RESULTS
    content = path.read_bytes()
    reads.clear()
    path.write_bytes(content)
    assert rows_in(folder) == expected and len(reads) == 3
    path.write_bytes(content[:-9])
    with pytest.raises(DamagedError, match=RESULTS):
        rows_in(folder)
    path.unlink()
    assert [row.id for row in rows_in(folder)] == [STARTED.id]
    path.write_bytes(content)
    assert rows_in(folder) == expected


def test_packed_observations_that_are_gone_are_missed(tmp_path):
    spec, store = small_spec(probes=("importances",)), Store(tmp_path)
    store.claim(spec).finish(result_of(spec, 0.5), {"importances": {}})
    shutil.copytree(tmp_path, tmp_path / "copy")
    store = Store(tmp_path / "copy")
    pack(store)
    assert [row.status for row in rows_in(store.folder)] == ["finished"]
    (store.folder / OBSERVATIONS).unlink()
    (row,) = rows_in(store.folder)
    assert row.status == "damaged" and f"{OBSERVATIONS} is missing" in row.damage and row.figures is not None


def test_a_new_failure_of_a_packed_run_is_seen(folder):
    store = Store(folder)
    pack(store)
    rows_in(folder)
    claim = store.claim(FAILED)
    claim.finish(result_of(FAILED, 0.75))
    claim.release()
    (row,) = [row for row in rows_in(folder) if row.id == FAILED.id]
    assert row.status == "finished" and row.figures.average_accuracy == 0.75


def test_a_run_that_nobody_is_at_is_stopped(folder):
    statuses = {row.id: row.status for row in told_apart(rows_in(folder), folder)}
    assert (statuses[STARTED.id], statuses[FAILED.id]) == ("stopped", "failed")
    claim = Store(folder).claim(STARTED)
    assert {row.id: row.status for row in told_apart(rows_in(folder), folder)}[STARTED.id] == "running"
    claim.release()


def test_an_empty_folder_and_one_without_runs(tmp_path):
    assert rows_in(tmp_path) == rows_in(tmp_path / "none") == []
    (tmp_path / "runs" / "notes").mkdir(parents=True)
    (tmp_path / "runs" / "README").touch()
    assert rows_in(tmp_path) == []
