"""Packing a store's runs into two files, and unpacking them: nothing is removed before its copy was read back.

Interrupted anywhere, be it by a kill, a store still has every run that it had, and the same call goes on.
"""

import contextlib
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from anchorhold.errors import DamagedError, StoreError
from anchorhold.whole_files import remove_unfinished, sync_folder, whole_file, write_whole
from anchorhold_lab.experiments.store.locks import Lock
from anchorhold_lab.experiments.store.packed import (
    FILE_NAME,
    OBSERVATIONS,
    OBSERVED,
    RESULTS,
    Observed,
    Pack,
    PackedRun,
    encoded,
    read_pack,
    write_archive,
)
from anchorhold_lab.experiments.store.run_files import check_same, check_same_observations
from anchorhold_lab.experiments.store.store import Store, spec_of

Told = Callable[[str, int, int], None]
"""Is told what is being done, with how many runs it is done, and how many there are."""


@dataclass(frozen=True)
class Moved:
    """What was packed or unpacked."""

    runs: int
    """How many runs were moved."""
    before: tuple[int, int]
    """How many files the store's runs were in, and how many bytes those had."""
    after: tuple[int, int]
    left: Mapping[str, str] = field(default_factory=dict)
    """Why a run stays in its folder, by id."""


def _untold(_what: str, _done: int, _of: int) -> None:
    """Tell nobody."""


def pack(store: Store, told: Told = _untold) -> Moved:
    """Move all runs that have finished or failed from their folders into two files; those that were only begun stay.

    Raise DamagedError if a file is not whole, before anything is written. Raise StoreError if another process packs or
    unpacks, or if a file cannot be written.
    """
    with _alone(store):
        before, old = _size(store), store.files.packed()
        chosen, left = _choose(store, old, told)
        runs = {} if old is None else {run: _there(old, run) for run in old.ids}
        for number, run in enumerate(chosen):
            told("reading", number, len(chosen))
            runs[run] = _joined(store, run, runs.get(run))
        _check_orphans(store, old, runs)
        _write_observations(store, old, runs, told)
        _write_results(store, runs)
        moved = 0
        for number, run in enumerate(chosen):
            told("removing folders", number, len(chosen))
            if why := _remove(store, run):
                left[run] = why
            else:
                moved += 1
        return Moved(moved, before, _size(store), left)


def unpack(store: Store, told: Told = _untold) -> Moved:
    """Move all packed runs into folders of their own, every file with the bytes that it had.

    Raise DamagedError if a packed file is not whole, or if another one lies where it would go, before anything is
    written. Raise StoreError if nothing is packed, if another process packs or unpacks, or if a file cannot be written.
    """
    with _alone(store):
        before, found = _size(store), store.files.packed()
        packed = found or Pack(store.folder / RESULTS, {})
        if found is None and not packed.archive.exists():  # which is the last to go
            raise StoreError(f"There is no {RESULTS} in {store.folder}: no run of it is packed.")
        runs = {run: _there(packed, run) for run in packed.ids}
        _check_orphans(store, found, runs)
        for number, run in enumerate(runs.values()):
            told("checking", number, len(runs))
            _refuse_damage(store, run.id)
            _check_same(store, run)
        for number, run in enumerate(runs.values()):
            told("writing", number, len(runs))
            _write_folder(store, packed, run)
        for run in runs.values():
            if any(not path.exists() for path in _files(store, run)):
                raise StoreError(f"{store.run_folder(run.id)} was changed while it was unpacked. Unpack once more.")
            _check_same(store, run)
        sync_folder(store.folder / "runs")
        for path in (packed.path, packed.archive):  # of the two, the results are of use alone
            path.unlink(missing_ok=True)
            sync_folder(store.folder)
        return Moved(len(runs), before, _size(store))


@contextlib.contextmanager
def _alone(store: Store) -> Iterator[None]:
    """Let no other process pack or unpack a store meanwhile, and remove what killed ones were writing."""
    lock = Lock(store.folder / "lock")
    try:
        _take(lock)
        try:
            for left in [path for name in (RESULTS, OBSERVATIONS) for path in store.folder.glob(f".{name}.*.part")]:
                left.unlink()
            yield
        finally:
            _release(lock)
    except StoreError:
        raise
    except OSError as error:
        raise StoreError(
            f"{error.filename or store.folder} could not be read or written: {error.strerror or error}. No run is "
            "lost. Make room, or make the store writable, and start again."
        ) from error


def _take(lock: Lock) -> None:
    """Take the lock of a store, or refuse to wait for it."""
    if not lock.take():
        raise StoreError(f"Another process packs or unpacks {lock.path.parent}. Wait until it has ended.")


def _release(lock: Lock) -> None:
    """Let others have a lock, and leave no file of it."""
    try:
        with contextlib.suppress(OSError):
            lock.path.unlink()
    finally:
        lock.release()


def _size(store: Store) -> tuple[int, int]:
    """Return in how many files a store's runs are, and how many bytes those have."""
    files = [path for path in (store.folder / "runs").glob("*/*") if path.name != "lock" and path.is_file()]
    files += [path for name in (RESULTS, OBSERVATIONS) if (path := store.folder / name).exists()]
    return len(files), sum(path.stat().st_size for path in files)


def _choose(store: Store, old: Pack | None, told: Told) -> tuple[list[str], dict[str, str]]:
    """Return the ids of the runs to pack, and why others stay; refuse runs with a file that is not whole."""
    known = [] if old is None else [run for run in old.ids if store.run_folder(run).is_dir()]
    found = sorted({*store.files.loose_ids(), *known})
    chosen, left = [], {}
    for number, run in enumerate(found):
        told("checking", number, len(found))
        _tidy(store.run_folder(run))
        _refuse_damage(store, run)
        if store.status(run) not in ("finished", "failed"):
            left[run] = "not finished"
        elif strange := _strange_files(store, run):
            left[run] = f"it has {', '.join(strange)}"
        else:
            chosen.append(run)
    return chosen, left


def _refuse_damage(store: Store, run: str) -> None:
    """Refuse a run of which anything is damaged."""
    if damage := store.entry(run).damage:
        raise DamagedError(f"{damage} Nothing was moved.")
    if store.files.has(run, "spec.json"):
        spec_of(run, store.files)  # which a whole result stands in for elsewhere
    store.observations(run)


def _tidy(folder: Path) -> None:
    """Remove what a killed process was writing in a run's folder, unless another one is at the run."""
    if not any(folder.glob(".*.part")):
        return
    lock = Lock(folder / "lock")
    if lock.take():
        try:
            remove_unfinished(folder)
        finally:
            _release(lock)


def _strange_files(store: Store, run: str) -> list[str]:
    """Return the names of files in a run's folder that are not packed, such as checkpoints."""
    names = sorted(path.name for path in store.run_folder(run).iterdir())
    return [name for name in names if name not in ("lock", OBSERVED) and not FILE_NAME.fullmatch(name)]


def _joined(store: Store, run: str, packed: PackedRun | None) -> PackedRun:
    """Return all of a run, be it in its folder or packed before."""
    folder = store.run_folder(run)
    contents = {path.name: path.read_bytes() for path in folder.iterdir() if FILE_NAME.fullmatch(path.name)}
    seen = folder / OBSERVED
    observed = Observed.of(seen) if seen.exists() else None
    if packed is not None:
        _check_same(store, packed)
        contents |= {name: content for name in packed.files if (content := packed.content(name)) is not None}
        observed = observed or packed.observed
    return PackedRun.of(run, contents, observed)


def _check_same(store: Store, run: PackedRun) -> None:
    """Refuse a run's folder with a file that is not the one that is packed."""
    folder = store.run_folder(run.id)
    for name in run.files:
        check_same(folder / name, run)
    if run.observed is not None:
        check_same_observations(folder / OBSERVED, run)


def _check_orphans(store: Store, old: Pack | None, runs: Mapping[str, PackedRun]) -> None:
    """Refuse to replace or remove an archive that has what would be nowhere else.

    It may have more than the results name: it is written before them, and removed after them.
    """
    archive = old or Pack(store.folder / RESULTS, {})
    if not archive.archive.exists():
        return
    for run in archive.entries:
        if old is not None and (named := old.run(run)) is not None and named.observed is not None:
            continue
        seen = store.run_folder(run) / OBSERVED
        there = PackedRun(run, {}, Observed.of(seen)) if seen.exists() else runs.get(run)
        if there is None or there.observed is None:
            raise DamagedError(
                f"{archive.archive} has observations of run {run}, which is neither in {RESULTS} nor in a folder: one "
                f"of the two files was removed, or another put in its place. Restore it, or move {archive.archive} "
                "away. Nothing was moved."
            )
        _read_through(archive, there)


def _write_observations(store: Store, old: Pack | None, runs: Mapping[str, PackedRun], told: Told) -> None:
    """Write the archive of what the runs' probes have seen, unless it is there."""
    archive = old or Pack(store.folder / RESULTS, {})
    kept: Collection[str] = archive.entries if archive.archive.exists() else ()
    seen = {run.id: run for run in runs.values() if run.observed is not None}
    if seen.keys() == set(kept):
        return
    found = {run: archive.compressed(run) if run in kept else store.run_folder(run) / OBSERVED for run in sorted(seen)}

    def one_by_one() -> Iterable[tuple[str, bytes | Path]]:
        for number, (run, source) in enumerate(found.items()):
            told("packing observations", number, len(found))
            yield run, source

    with whole_file(archive.archive) as file:
        write_archive(file, one_by_one())
        file.flush()
        written = Pack(archive.path, {}, Path(file.name))
        for run in seen.values():
            _read_back(partial(_read_through, written, run), archive.archive)


def _write_results(store: Store, runs: Mapping[str, PackedRun]) -> None:
    """Write the file of results, unless it is there."""
    path = store.folder / RESULTS
    try:
        content = encoded(runs.values())
    except ValueError as error:
        raise StoreError(f"{path} cannot be written: {error}. Every run is where it was.") from error
    if not runs or (path.exists() and path.read_bytes() == content):
        return
    with whole_file(path) as file:
        file.write(content)
        file.flush()
        _read_back(lambda: read_pack(Path(file.name)), path)


def _read_through(archive: Pack, run: PackedRun) -> None:
    """Read a run's observations to their end, by which it is known whether they are whole."""
    for _ in archive.observations(run):
        pass


def _read_back(read: Callable[[], object], path: Path) -> None:
    """Read what was just written, before it takes the place of anything."""
    try:
        read()
    except StoreError as error:
        raise StoreError(
            f"{path} could not be written: what was read back is not what was packed ({error}) Every run is where it "
            "was."
        ) from error


def _remove(store: Store, run: str) -> str:
    """Remove the folder of a run that is packed, file by file as each is what was packed; say why if it stays."""
    packed, folder = store.files.packed(), store.run_folder(run)
    there = None if packed is None else packed.run(run)
    if there is None:
        raise StoreError(f"{store.folder / RESULTS} lacks run {run}: it was changed while runs were packed.")
    lock = Lock(folder / "lock")
    if not lock.take():
        return "another process is at it"
    try:
        paths = sorted(path for path in folder.iterdir() if path != lock.path)
        if set(paths) - set(_files(store, there)):
            return "changed since it was read"
        _check_same(store, there)
        for path in [*paths, lock.path]:
            path.unlink()
        folder.rmdir()
    finally:
        lock.release()
    return ""


def _write_folder(store: Store, packed: Pack, run: PackedRun) -> None:
    """Write those files of a run that are not in its folder."""
    folder = store.run_folder(run.id)
    folder.mkdir(parents=True, exist_ok=True)
    _tidy(folder)
    if run.observed is not None and not (folder / OBSERVED).exists():
        with whole_file(folder / OBSERVED) as file:
            for chunk in packed.observations(run):
                file.write(chunk)
    for name in run.files:
        content = run.content(name)
        if content is not None and not (folder / name).exists():
            write_whole(folder / name, content)


def _files(store: Store, run: PackedRun) -> list[Path]:
    """Return where the files of a run are when it is unpacked."""
    folder = store.run_folder(run.id)
    return [folder / name for name in (*run.files, *([] if run.observed is None else [OBSERVED]))]


def _there(packed: Pack, id: str) -> PackedRun:
    """Return a run of which it is known that it is packed."""
    run = packed.run(id)
    assert run is not None
    return run
