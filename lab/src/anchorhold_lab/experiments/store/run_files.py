"""What a store has of each run, in the run's own folder or packed with others: the readers need not know which.

A run may have files in both: one that failed, was packed, and was tried again. A file that lies in both has to be the
same in both, or is refused by both names. Who packs writes the packed files before the run's folder goes, and who
unpacks writes the folder first, so that no file is ever in neither; a look that falls between the two is taken again.
"""

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

from anchorhold.errors import DamagedError, StateError, StoreError
from anchorhold_lab.experiments.store.nested_files import nested_in, read_nested
from anchorhold_lab.experiments.store.packed import (
    OBSERVATIONS,
    OBSERVED,
    RESULTS,
    Observed,
    Pack,
    PackedRun,
    read_pack,
)
from anchorhold_lab.experiments.store.reading import is_there, read_json, unreadable

T = TypeVar("T")
_FAILURE = re.compile(r"failure-([1-9][0-9]{0,8})\.json")


class RunFiles:
    """The files of a store's runs.

    Args:
        folder: the store's.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._pack: Pack | None = None
        self._stamp: object = None

    def packed(self) -> Pack | None:
        """The runs that are packed, as they are now; refused if they are damaged."""
        paths = self.folder / RESULTS, self.folder / OBSERVATIONS
        stamp = tuple(map(_stamp_of, paths))
        if stamp != self._stamp:
            try:
                self._pack = None if stamp[0] is None else read_pack(paths[0])
            except FileNotFoundError:  # unpacked since
                return self.packed()
            except OSError as error:
                raise error if isinstance(error, StoreError) else unreadable(paths[0], error) from error
            self._stamp = stamp
        return self._pack

    def run_folder(self, id: str) -> Path:
        """Return the folder of a run."""
        return self.folder / "runs" / id

    def ids(self) -> list[str]:
        """Return the ids of all runs, sorted."""
        return self._settled(lambda pack: sorted({*self.loose_ids(), *([] if pack is None else pack.ids)}))

    def loose_ids(self) -> list[str]:
        """Return the ids of the runs that have a folder."""
        runs = self.folder / "runs"
        try:
            folders = [path for path in runs.iterdir() if path.is_dir()] if is_there(runs) else []
        except OSError as error:
            raise unreadable(runs, error) from error
        # One of which it cannot be told how it stands is not left out: there may be a result in it.
        return [path.name for path in folders if _is_run(path)]

    def known(self, id: str) -> bool:
        """Whether anything is left of a run."""
        return self._settled(lambda pack: is_there(self.run_folder(id)) or _run(pack, id) is not None)

    def has(self, id: str, name: str) -> bool:
        """Whether a run has a file."""

        def look(pack: Pack | None) -> bool:
            run = _run(pack, id)
            return is_there(self.run_folder(id) / name) or (run is not None and name in run.files)

        return self._settled(look)

    def where(self, id: str, name: str) -> Path:
        """Return a name for a file of a run that says where it lies."""
        run = _run(self.packed(), id)
        packed = run is not None and name in run.files
        return (self.folder / RESULTS / id if packed else self.run_folder(id)) / name

    def read(self, id: str, name: str) -> Any:
        """Return what a file says; ``None`` if there is none."""

        def look(pack: Pack | None) -> Any:
            run, path = _run(pack, id), self.run_folder(id) / name
            if run is None or name not in run.files:
                return read_json(path)
            check_same(path, run)
            return run.value(name)

        return self._settled(look)

    def packed_files(self, id: str) -> dict[str, bytes]:
        """Return those files of a run that are packed, but for its observations, by name."""
        run = _run(self.packed(), id)
        contents = {} if run is None else {name: run.content(name) for name in run.files}
        return {name: content for name, content in contents.items() if content is not None}

    def failures(self, id: str) -> tuple[list[str], list[Path]]:
        """Return the names of a run's failures, the first one first, and files that are named like one and are none."""
        folder = self.run_folder(id)

        def look(pack: Pack | None) -> tuple[list[str], list[Path]]:
            try:
                paths = sorted(folder.glob("failure-*.json"))
            except FileNotFoundError:  # it went while it was looked through
                paths = []
            except OSError as error:
                raise unreadable(folder, error) from error
            run = _run(pack, id)
            names = {path.name for path in paths} | (set() if run is None else set(run.files))
            numbers = {name: int(match[1]) for name in names if (match := _FAILURE.fullmatch(name)) is not None}
            return sorted(numbers, key=numbers.__getitem__), [path for path in paths if path.name not in numbers]

        return self._settled(look)

    def has_observations(self, id: str) -> bool:
        """Whether there is a file of what the probes of a run have seen; refused where a packed one is missing."""

        def look(pack: Pack | None) -> bool:
            if is_there(self.run_folder(id) / OBSERVED):
                return True
            run = _run(pack, id)
            if pack is None or run is None or run.observed is None:
                return False
            pack.check_observations(run)
            return True

        return self._settled(look)

    def observations(self, id: str) -> tuple[Any, Path]:
        """Return what the probes of a run have seen, unchecked, and where that lies; ``None`` if there is none."""

        def look(pack: Pack | None) -> tuple[Any, Path]:
            run, path = _run(pack, id), self.run_folder(id) / OBSERVED
            if pack is None or run is None or run.observed is None:
                return (_read(lambda: read_nested(path), path) if is_there(path) else None), path
            check_same_observations(path, run)
            path = pack.archive / id / OBSERVED
            return _read(lambda: nested_in(b"".join(pack.observations(run)), path), path), path

        return self._settled(look)

    def _settled(self, look: Callable[[Pack | None], T]) -> T:
        """Return what a look finds while nothing is packed or unpacked."""
        while True:
            pack = self.packed()
            try:
                found = look(pack)
            except StoreError:
                if self.packed() is pack:
                    raise
                continue
            if self.packed() is pack:
                return found


def check_same(path: Path, run: PackedRun) -> None:
    """Refuse a file that lies in a run's folder and is not the one that is packed."""
    try:
        content = path.read_bytes()
    except (FileNotFoundError, NotADirectoryError):
        return
    except OSError as error:
        raise unreadable(path, error) from error
    if content != run.content(path.name):
        raise _differs(path, RESULTS)


def check_same_observations(path: Path, run: PackedRun) -> None:
    """Refuse observations that lie in a run's folder and are not those that are packed."""
    try:
        observed = Observed.of(path)
    except (FileNotFoundError, NotADirectoryError):
        return
    except OSError as error:
        raise unreadable(path, error) from error
    if observed != run.observed:
        raise _differs(path, OBSERVATIONS)


def _differs(path: Path, packed: str) -> DamagedError:
    return DamagedError(
        f"{path} is not what {path.parents[2] / packed} has of the same run: one of the two was changed or copied "
        "there from outside. Neither was touched. Remove the wrong one; the packed one is the older."
    )


def _run(pack: Pack | None, id: str) -> PackedRun | None:
    return None if pack is None else pack.run(id)


def _stamp_of(path: Path) -> tuple[int, ...] | None:
    """Return what tells a file from the one that was there before; ``None`` if there is none."""
    try:
        seen = path.stat()
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        raise unreadable(path, error) from error
    return seen.st_dev, seen.st_ino, seen.st_size, seen.st_mtime_ns, seen.st_ctime_ns


def _read(read: Callable[[], Any], path: Path) -> Any:
    """Return what a file of observations holds."""
    try:
        return read()
    except StateError as error:
        raise DamagedError(f"{error} Remove the folder {path.parent} to make the run again.") from error
    except OSError as error:
        raise error if isinstance(error, StoreError) else unreadable(path, error) from error


def _is_run(folder: Path) -> bool:
    """Whether a folder is a run's, as far as can be told."""
    try:
        return is_there(folder / "spec.json") or is_there(folder / "result.json")
    except DamagedError:
        return True
