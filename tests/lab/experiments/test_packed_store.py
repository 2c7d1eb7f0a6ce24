"""Packed runs: read like others, the same bytes again when they are unpacked, and never lost on the way."""

import contextlib
import errno
import hashlib
import io
import json
import os
import re
import shutil
import threading
import zipfile
from pathlib import Path

import pytest
from zstandard import ZstdCompressor, ZstdDecompressor

from anchorhold.errors import ConfigurationError, DamagedError, StoreError
from anchorhold_lab.experiments import Failure, Store, execute, load_source, paper_spec
from anchorhold_lab.experiments.store import packing
from anchorhold_lab.experiments.store.locks import Lock
from anchorhold_lab.experiments.store.packed import OBSERVATIONS, OBSERVED, RESULTS, read_pack
from anchorhold_lab.experiments.store.packing import pack, unpack
from tests.lab.experiments.helpers import result_of, small_spec
from tests.lab.experiments.study_file import write_study

PUBLISHED = Path(__file__).parents[3] / "results" / "paper" / "store"
DIGEST = "b227d6fbd83b6aaaea2f2a086b44de10f28b632fbf04a36bd7c2b18844c69250"
"""Of the published runs' files, names, sizes and contents, as they lay in folders before they were packed."""

FINISHED, SEEN, FAILED, BEGUN = (
    small_spec(0),
    small_spec(1, probes=("importances",)),
    small_spec(2),
    small_spec(3),
)


def failure(reason):
    return Failure(reason, "2026-01-01T00:00:00", "cpu", None, {})


def add(store, spec, accuracy=0.5, observations=None):
    claim = store.claim(spec)
    claim.finish(result_of(spec, accuracy), observations)
    claim.release()


def fail(store, spec, reason):
    claim = store.claim(spec)
    claim.fail(failure(reason))
    claim.release()


def filled(folder):
    """A store with a run of every kind; one of them is damaged in a way that its result makes up for."""
    store = Store(folder)
    add(store, FINISHED)
    add(store, SEEN, 0.25, {"importances": {"tasks": [{"sums": 1.5}], "name": "ä"}})
    fail(store, FAILED, "too bad")
    store.claim(BEGUN).release()
    return store


@pytest.fixture
def store(tmp_path):
    return filled(tmp_path / "store")


def contents(folder):
    """All files of a store by name, but for locks."""
    paths = [path for path in folder.rglob("*") if path.is_file() and path.name != "lock"]
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in paths}


def told(store):
    """All that a store says of its runs."""
    entries = store.entries()
    assert sorted(entry.id for entry in entries) == store.ids()
    asked = (store.status, store.spec, store.get, store.failures, store.observations, store.has_observations)
    return [(entry, *(ask(entry.id) for ask in asked), store.find(entry.id[:9])) for entry in entries]


def rewritten(store, change):
    """Write the file of results anew, with changed lines and a checksum that fits."""
    path = store.folder / RESULTS
    lines = change(ZstdDecompressor().decompress(path.read_bytes()).splitlines()[1:])
    body = b"".join(line + b"\n" for line in lines)
    header = {"layout": 1, "runs": len(lines), "sha256": hashlib.sha256(body).hexdigest()}
    path.write_bytes(ZstdCompressor().compress(json.dumps(header).encode() + b"\n" + body))


# The same as ever


def test_a_packed_store_says_what_it_said_and_unpacks_to_the_same_bytes(store):
    before, files, frame = told(store), contents(store.folder), store.frame()
    moved = pack(store)
    assert (moved.runs, moved.left) == (3, {BEGUN.id: "not finished"})
    assert moved.before == (8, sum(map(len, files.values())))
    left = contents(store.folder)
    assert set(left) == {RESULTS, OBSERVATIONS, f"runs/{BEGUN.id}/spec.json"}
    assert moved.after == (3, sum(map(len, left.values())))
    assert [path.name for path in (store.folder / "runs").iterdir()] == [BEGUN.id]
    for place in (store, Store(store.folder)):
        assert told(place) == before
    assert store.frame().equals(frame)
    assert pack(store).runs == 0 and contents(store.folder) == left
    assert unpack(store).runs == 3
    assert contents(store.folder) == files and told(store) == told(Store(store.folder)) == before
    with pytest.raises(StoreError, match=rf"no {RESULTS}"):
        unpack(store)


def test_equal_runs_have_equal_packed_files_in_whatever_order_they_came(store, tmp_path):
    other = Store(tmp_path / "other")
    shutil.copytree(store.folder, other.folder)
    shutil.rmtree(other.run_folder(SEEN.id))
    pack(other)
    shutil.copytree(store.run_folder(SEEN.id), other.run_folder(SEEN.id))
    assert pack(other).runs == 1
    pack(store)
    assert contents(store.folder) == contents(other.folder)


def test_a_file_that_was_written_by_hand_keeps_its_bytes(store):
    """Its content is whole, and no JSON that anchorhold writes."""
    path = store.run_folder(FINISHED.id) / "result.json"
    for text in (
        json.dumps(json.loads(path.read_bytes())),
        path.read_text().replace("\n", "\r\n"),
        "\n\n" + path.read_text(),
    ):
        path.write_bytes(text.encode())
        pack(store)
        assert store.get(FINISHED) == result_of(FINISHED, 0.5)
        unpack(store)
        assert path.read_bytes() == text.encode()


def test_what_the_file_of_results_holds_can_be_read_by_anyone(store):
    pack(store)
    header, *lines = ZstdDecompressor().decompress((store.folder / RESULTS).read_bytes()).splitlines()
    runs = {run["id"]: run for run in map(json.loads, lines)}
    assert json.loads(header)["runs"] == len(runs) == 3
    assert runs[FINISHED.id]["files"]["result.json"]["metrics"]["average_accuracy"] == 0.5
    assert set(runs[FAILED.id]["files"]) == {"spec.json", "failure-1.json"}


@pytest.mark.skipif(not PUBLISHED.is_dir(), reason="not a checkout")
def test_the_published_runs_have_the_bytes_that_they_had():
    found, runs = hashlib.sha256(), read_pack(PUBLISHED / RESULTS)
    for run in map(runs.run, runs.ids):
        files = {name: run.content(name) for name in run.files}
        if run.observed is not None:
            files[OBSERVED] = b"".join(runs.observations(run))
        for name in sorted(files):
            found.update(f"{run.id}/{name} {len(files[name])}\n".encode() + files[name])
    assert found.hexdigest() == DIGEST and len(runs.ids) == 1783


# New runs


def test_new_runs_lie_beside_packed_ones_until_the_next_pack(store):
    made, new = small_spec(5), small_spec(6)
    execute([made], store, device="cpu")
    pack(store)
    packed = (store.folder / RESULTS).read_bytes()
    summary = execute([made, new, FAILED], store, device="cpu")
    assert [skipped.why for skipped in summary.skipped] == ["finished already", "failed before"]
    assert [result.spec for result in summary.finished] == [new]
    assert (store.folder / RESULTS).read_bytes() == packed
    assert {path.name for path in (store.folder / "runs").iterdir()} == {BEGUN.id, new.id}
    found = told(store)
    assert pack(store).runs == 1 and told(store) == found and not store.run_folder(new.id).exists()


def test_a_packed_run_that_failed_is_tried_again_and_keeps_its_failures(store):
    pack(store)
    fail(store, FAILED, "once more")
    assert contents(store.run_folder(FAILED.id)).keys() == {"failure-2.json"}
    assert [each.reason for each in store.failures(FAILED)] == ["too bad", "once more"]
    assert pack(store).runs == 1
    assert [each.reason for each in store.failures(FAILED)] == ["too bad", "once more"]
    summary = execute([FAILED], store, device="cpu", retry=True)
    assert len(summary.finished) == 1 and store.status(FAILED.id) == "finished"
    before = told(store)
    assert pack(store).runs == 1 and told(store) == before
    unpack(store)
    assert told(store) == before
    assert contents(store.run_folder(FAILED.id)).keys() == {
        "failure-1.json",
        "failure-2.json",
        "result.json",
        "spec.json",
    }


def test_a_packed_result_is_never_overwritten(store):
    pack(store)
    claim = store.claim(FINISHED)
    with pytest.raises(StoreError, match="never overwritten"):
        claim.finish(result_of(FINISHED, 0.9))
    claim.release()


def test_nothing_is_written_by_making_finished_runs_again(store):
    pack(store)
    before = contents(store.folder)
    store.tidy(FINISHED)
    assert contents(store.folder) == before


def test_a_run_that_somebody_is_at_or_that_has_other_files_stays(store):
    claim = store.claim(FAILED)
    (store.run_folder(FINISHED.id) / "rejected-1-within-task.safetensors").write_bytes(b"kept")
    moved = pack(store)
    claim.release()
    assert moved.runs == 1 and moved.left == {
        FAILED.id: "another process is at it",
        FINISHED.id: "it has rejected-1-within-task.safetensors",
        BEGUN.id: "not finished",
    }
    assert pack(store).runs == 1 and not store.run_folder(FAILED.id).exists()


def test_while_runs_move_whoever_looks_sees_all_of_them(store):
    expected, found, over = told(store), [], threading.Event()

    def look():
        place = Store(store.folder)
        while not over.is_set():
            found.append(told(place))

    watching = [threading.Thread(target=look) for _ in range(2)]
    for thread in watching:
        thread.start()
    try:
        for _ in range(5):
            pack(store)
            unpack(store)
    finally:
        over.set()
        for thread in watching:
            thread.join()
    assert len(found) > 5 and all(each == expected for each in found)


# Interrupted


class Interrupted(BaseException):
    """Comes where a call to the system would."""


@contextlib.contextmanager
def failing(happens, error):
    """Let some of the calls that change files fail, by their number."""
    seen, real = [], {}

    def counted(place, name):
        before = getattr(place, name)
        real[place, name] = before

        def call(*arguments, **options):
            seen.append(name)
            if happens(len(seen)):
                raise error
            return before(*arguments, **options)

        setattr(place, name, call)

    for place, name in ((os, "fsync"), (os, "replace"), (os, "unlink"), (os, "rmdir"), (os, "mkdir"), (io, "open")):
        counted(place, name)

    try:
        yield seen
    finally:
        for (place, name), before in real.items():
            setattr(place, name, before)


def half_packed(folder):
    """A store in which some runs are packed, one of them with a new failure, and others not."""
    store = Store(folder)
    add(store, FINISHED)
    add(store, small_spec(8, probes=("importances",)), 0.75, {"importances": {"tasks": [8]}})
    fail(store, FAILED, "too bad")
    pack(store)
    fail(store, FAILED, "once more")
    add(store, SEEN, 0.25, {"importances": {"tasks": []}})
    store.claim(BEGUN).release()
    return store


def packed_whole(folder):
    store = half_packed(folder)
    pack(store)
    return store


@pytest.mark.parametrize(("begin", "work"), [(half_packed, pack), (packed_whole, unpack)], ids=["pack", "unpack"])
@pytest.mark.nightly
@pytest.mark.parametrize(
    ("error", "for_good"), [(OSError(errno.ENOSPC, "Full"), False), (Interrupted(), True)], ids=["full", "dead"]
)
def test_whatever_call_fails_nothing_is_lost_and_the_same_call_goes_on(tmp_path, begin, work, error, for_good):
    """Where all calls fail from one on, nothing is tidied up either, as by a kill; ``torture/kills.py`` kills."""
    origin = begin(tmp_path / "origin")
    expected, number = told(origin), 0
    whole = Store(shutil.copytree(origin.folder, tmp_path / "whole"))
    work(whole)
    while True:
        number += 1
        store = Store(shutil.copytree(origin.folder, tmp_path / str(number)))
        try:
            with failing(lambda call, k=number: call >= k if for_good else call == k, error) as calls:
                work(store)
        except (StoreError, Interrupted) as refused:
            assert refused is error or "could not be" in str(refused)  # noqa: PT017 (some failures do no harm)
        if len(calls) < number:
            break
        assert told(Store(store.folder)) == expected
        if work is pack or (store.folder / OBSERVATIONS).exists():
            work(Store(store.folder))
        assert contents(store.folder) == contents(whole.folder), number
    assert number > 15


def test_two_at_once_pack_once(store):
    lock = Lock(store.folder / "lock")
    assert lock.take()
    before = contents(store.folder)
    for work in (pack, unpack):
        with pytest.raises(StoreError, match="Another process packs or unpacks"):
            work(store)
    assert contents(store.folder) == before
    lock.release()
    expected, refused = told(store), []

    def work():
        try:
            pack(Store(store.folder))
        except StoreError as error:
            refused.append(str(error))

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert all("Another process packs" in each for each in refused) and len(refused) < 4
    assert told(store) == expected and len(contents(store.folder)) == 3


def test_what_was_written_wrong_takes_the_place_of_nothing(store, monkeypatch):
    """A disk that gives back other bytes than it was given."""
    before = contents(store.folder)
    encoded, written = packing.encoded, packing.write_archive

    def archive(file, observations):
        written(file, observations)
        file.seek(70)
        file.write(b"other")

    for name, wrong in (("encoded", lambda runs: encoded(runs)[:-5] + b"wrong"), ("write_archive", archive)):
        with monkeypatch.context() as patched:
            patched.setattr(packing, name, wrong)
            with pytest.raises(StoreError, match="could not be written: what was read back is not what was packed"):
                pack(store)
        (store.folder / OBSERVATIONS).unlink(missing_ok=True)  # whole, and written before the results
        assert contents(store.folder) == before


# Damaged


def damages(content):
    yield b""
    yield content[: len(content) // 2]
    yield content[:-1]
    yield content + b"\0"
    yield content + content
    yield b"another file"
    for place in range(0, len(content), max(1, len(content) // 60)):
        yield content[:place] + bytes([content[place] ^ 1]) + content[place + 1 :]


def test_damaged_results_are_refused_by_name_whatever_is_asked(store):
    pack(store)
    path, whole = store.folder / RESULTS, contents(store.folder)
    asked = (
        store.entries,
        store.ids,
        store.frame,
        lambda: store.get(FINISHED),
        lambda: store.status(FINISHED),
        lambda: store.status(small_spec(9)),
        lambda: execute([small_spec(9)], store, device="cpu"),
        lambda: pack(store),
        lambda: unpack(store),
    )
    content = path.read_bytes()
    for number, damaged in enumerate(damages(content)):
        path.write_bytes(damaged)
        ask = asked[number % len(asked)]
        with pytest.raises(DamagedError, match=rf"{RESULTS} is damaged .* Nothing is written over it") as refusal:
            ask()
        assert str(path) in str(refusal.value)
        assert path.read_bytes() == damaged
    path.write_bytes(content)
    assert contents(store.folder) == whole and store.get(FINISHED) is not None


def test_a_damaged_archive_is_refused_by_name_and_results_are_still_there(store):
    pack(store)
    path, expected = store.folder / OBSERVATIONS, store.observations(SEEN)
    content, refused = path.read_bytes(), 0
    for damaged in damages(content):
        path.write_bytes(damaged)
        place = Store(store.folder)
        assert place.get(SEEN) == result_of(SEEN, 0.25)
        with contextlib.suppress(DamagedError):
            assert place.observations(SEEN) == expected  # a date or a mode was hit, which nobody reads
            continue
        refused += 1
        for ask in (lambda place=place: place.observations(SEEN), lambda place=place: unpack(place)):
            with pytest.raises(DamagedError) as refusal:
                ask()
            assert str(path) in str(refusal.value)
        assert place.get(SEEN) == result_of(SEEN, 0.25) and path.read_bytes() == damaged
    assert refused > 30
    path.write_bytes(content)
    assert Store(store.folder).observations(SEEN) == expected


def test_an_archive_that_is_gone_or_another_is_missed(store, tmp_path):
    pack(store)
    path = store.folder / OBSERVATIONS
    content = path.read_bytes()
    path.unlink()
    entry = store.entry(SEEN)
    assert entry.status == "damaged" and entry.result is not None
    assert f"{path} is missing" in entry.damage and "results are whole" in entry.damage
    with pytest.raises(DamagedError, match="is missing"):
        unpack(store)
    other, different = Store(tmp_path / "other"), Store(tmp_path / "different")
    add(other, small_spec(7, probes=("importances",)), 0.25, {"importances": {}})
    add(different, SEEN, 0.25, {"importances": {}})
    for wrong, said in ((other, f"no observations of run {SEEN.id}"), (different, "do not match|more of them")):
        pack(wrong)
        shutil.copy(wrong.folder / OBSERVATIONS, path)
        with pytest.raises(DamagedError, match=said) as refusal:
            store.observations(SEEN)
        assert str(path) in str(refusal.value)
        with pytest.raises(DamagedError, match=re.escape(str(path))):
            unpack(store)
    path.write_bytes(content)
    assert store.entry(SEEN).status == "finished" and unpack(store).runs == 3


def test_an_archive_without_results_is_not_taken_for_rubbish(store):
    """Its results were removed from outside; what it has is nowhere else."""
    pack(store)
    archive, results = store.folder / OBSERVATIONS, (store.folder / RESULTS).read_bytes()
    content = archive.read_bytes()
    (store.folder / RESULTS).unlink()
    add(store, small_spec(7))
    with pytest.raises(DamagedError, match=f"neither in {RESULTS} nor in a folder") as refusal:
        pack(store)
    assert str(archive) in str(refusal.value) and archive.read_bytes() == content
    (store.folder / RESULTS).write_bytes(results)
    assert pack(store).runs == 1 and store.observations(SEEN)


def test_what_unpacks_to_more_than_it_may_is_refused_before_it_does(store):
    pack(store)
    path = store.folder / RESULTS
    frame = bytearray(ZstdCompressor().compress(b"0" * 100_000))
    frame[5:9] = (2**31 - 1).to_bytes(4, "little")  # says so of itself; the frame has four bytes for its size
    for bomb in (bytes(frame), ZstdCompressor(write_content_size=False).compress(b"0" * 10**6)):
        path.write_bytes(bomb)
        with pytest.raises(DamagedError, match=rf"{RESULTS} is damaged"):
            store.ids()


def test_observations_that_unpack_to_more_than_was_packed_are_refused(store):
    pack(store)
    for kind, level in ((zipfile.ZIP_STORED, None), (zipfile.ZIP_DEFLATED, 9)):
        with zipfile.ZipFile(store.folder / OBSERVATIONS, "w", kind, compresslevel=level) as archive:
            archive.writestr(f"{SEEN.id}/{OBSERVED}.zst", ZstdCompressor().compress(b"0" * 10**8))
        with pytest.raises(DamagedError, match=r"more of them than were packed|compressed twice"):
            Store(store.folder).observations(SEEN)
    with zipfile.ZipFile(store.folder / OBSERVATIONS, "w") as archive:
        archive.writestr("../../outside", b"")
    with pytest.raises(DamagedError, match="other files than observations"):
        Store(store.folder).observations(SEEN)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda lines: [*lines, lines[0]], "4 runs were packed, and 3 are there"),
        (lambda lines: [*lines, b'{"id":"../../../../out","files":{}}'], "4 runs were packed, and 3 are there"),
        (lambda lines: [line.replace(b'"spec.json"', b'"../x.json"') for line in lines], "other files than a run's"),
        (lambda lines: [line[:60] for line in lines], "run .*Error"),
        (lambda lines: [line.partition(b"files")[0] + b'files":[]}' for line in lines], "other files than a run's"),
    ],
)
def test_results_that_a_stranger_made_are_refused(store, change, said):
    pack(store)
    rewritten(store, change)
    with contextlib.suppress(DamagedError):  # if not of the whole file, it is said of each run
        assert all(entry.status == "damaged" or entry.id == BEGUN.id for entry in Store(store.folder).entries())
    with pytest.raises(DamagedError, match=said) as refusal:
        unpack(Store(store.folder))
    assert str(store.folder / RESULTS) in str(refusal.value)
    assert not list(store.folder.glob("runs/*/result.json"))


def test_a_run_under_another_name_is_refused(store):
    pack(store)
    one, two = FINISHED.id.encode(), small_spec(7).id.encode()
    rewritten(store, lambda lines: [line.replace(one, two, 1) for line in lines])
    entries = {entry.id: entry for entry in Store(store.folder).entries()}
    wrong = entries[two.decode()]
    assert wrong.status == "damaged" and f"{RESULTS}/{two.decode()}/result.json belongs to run" in wrong.damage
    assert entries[SEEN.id].status == "finished"
    with pytest.raises(DamagedError, match="belongs to run"):
        unpack(Store(store.folder))


def test_a_later_layout_is_refused_as_such(store):
    pack(store)
    text = ZstdDecompressor().decompress((store.folder / RESULTS).read_bytes())
    (store.folder / RESULTS).write_bytes(ZstdCompressor().compress(text.replace(b'"layout": 1', b'"layout": 2', 1)))
    with pytest.raises(DamagedError, match="has layout 2; expected 1"):
        store.ids()


# In both


def test_a_run_in_both_is_one_run_while_the_two_are_the_same(store, tmp_path):
    copy = Store(shutil.copytree(store.folder, tmp_path / "copy"))
    pack(store)
    expected = told(store)
    shutil.copytree(copy.folder, store.folder, dirs_exist_ok=True)
    assert told(store) == expected and len(store.ids()) == 4
    assert pack(store).runs == 3 and len(contents(store.folder)) == 3
    shutil.copytree(copy.folder, store.folder, dirs_exist_ok=True)
    unpack(store)
    assert contents(store.folder) == contents(copy.folder)


@pytest.mark.parametrize("name", ["result.json", "spec.json", OBSERVED])
def test_a_run_in_both_that_differs_is_named_and_neither_is_touched(store, tmp_path, name):
    path = store.run_folder(SEEN.id) / name
    copy = shutil.copytree(path.parent, tmp_path / "copy")
    pack(store)
    shutil.copytree(copy, path.parent)
    path.write_bytes(path.read_bytes() + b" ")
    before = contents(store.folder)
    for work in (pack, unpack, *([lambda place: place.observations(SEEN)] if name == OBSERVED else [])):
        with pytest.raises(DamagedError, match="has of the same run") as refusal:
            work(Store(store.folder))
        assert str(path) in str(refusal.value)
    assert contents(store.folder) == before
    if name == "result.json":
        entries = {entry.id: entry for entry in store.entries()}
        assert entries[SEEN.id].status == "damaged" and entries[FINISHED.id].status == "finished"
    path.unlink()
    assert unpack(store).runs == 3


def test_a_run_with_a_damaged_file_is_not_packed(store):
    for name in ("result.json", "spec.json", OBSERVED):
        path = store.run_folder(SEEN.id) / name
        content = path.read_bytes()
        path.write_bytes(content[:-20])
        before = contents(store.folder)
        with pytest.raises(DamagedError, match=name):
            pack(store)
        assert contents(store.folder) == before
        path.write_bytes(content)
    assert pack(store).runs == 3


# Others that use a store


def test_what_is_no_store_is_said(tmp_path):
    with pytest.raises(StoreError, match="none could not be read or written"):
        pack(Store(tmp_path / "none"))
    (tmp_path / "file").touch()
    with pytest.raises(StoreError, match="is a file"):
        Store(tmp_path / "file")
    (tmp_path / RESULTS).mkdir()
    with pytest.raises(DamagedError, match="could not be read"):
        Store(tmp_path).ids()


def test_an_id_is_found_by_its_beginning(store):
    pack(store)
    assert store.get(FINISHED.id[:6]) == result_of(FINISHED, 0.5)
    with pytest.raises(ConfigurationError, match="begin with ''"):
        store.get("")
    with pytest.raises(StoreError, match="There is no run 'ffff'"):
        store.spec("ffff")


def test_a_packed_run_from_a_file_of_ones_own_is_read(tmp_path):
    load_source(write_study(tmp_path))
    spec, store = paper_spec("blobs", "walk"), Store(tmp_path / "store")
    add(store, spec)
    pack(store)
    assert [entry.spec for entry in store.entries()] == [spec]
