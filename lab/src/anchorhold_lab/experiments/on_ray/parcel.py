"""A part of a store that travels: the files of a few runs, to the worker that makes them and back."""

import contextlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import numpy.typing as npt

from anchorhold.errors import StoreError
from anchorhold.whole_files import whole_file
from anchorhold_lab.experiments.specs.spec import Spec
from anchorhold_lab.experiments.store.checkpoints import is_checkpoint
from anchorhold_lab.experiments.store.store import Store, writing

_RESULT = "result.json"
_Stamp = tuple[int, int, int]


@dataclass(frozen=True)
class Parcel:
    """Files to write and files to remove, by their paths in the store."""

    written: Mapping[str, npt.NDArray[np.uint8]] = field(default_factory=dict)
    """As arrays, which Ray moves between processes without copies."""
    removed: Sequence[str] = ()

    @property
    def has_checkpoint(self) -> bool:
        """Whether runs that are begun from this go on, rather than begin anew."""
        return any(is_checkpoint(Path(name)) for name in self.written)

    def unpack(self, store: Store) -> None:
        """Write and remove the files, each whole or not at all; the caller has claimed the runs."""
        # A result comes last, since its presence says that all is there.
        for name in sorted(self.written, key=lambda name: Path(name).name == _RESULT):
            path = store.folder / name
            if path.name == _RESULT and store.files.has(path.parent.name, _RESULT):
                raise StoreError(f"{path} exists already; a result is never overwritten. Was its lock file removed?")
            with writing(path):
                path.parent.mkdir(parents=True, exist_ok=True)
                with whole_file(path) as file:
                    file.write(self.written[name].data)
        for name in self.removed:
            path = store.folder / name
            with writing(path):
                path.unlink(missing_ok=True)
            with contextlib.suppress(OSError):  # what is left of a group whose runs are over
                path.parent.rmdir()


def pack(store: Store, members: Sequence[Spec]) -> Parcel:
    """Return all that a store has of runs that train together; the caller has claimed them, and kept their sources."""
    folders = [store.run_folder(spec.id) for spec in members]
    if len(members) > 1:
        folders.append(store.checkpoint_folder([spec.id for spec in members]))
    sources = {store.source_path(spec.source) for spec in members if spec.source is not None}
    files = _files(store, folders) | {_name(store, path): path for path in sources}
    packed = {
        f"runs/{spec.id}/{name}": np.frombuffer(content, np.uint8)
        for spec in members
        for name, content in store.files.packed_files(spec.id).items()
    }
    return Parcel(packed | {name: np.fromfile(path, np.uint8) for name, path in files.items()})


class Changes:
    """What has changed in a store, since it was made or since the last parcel."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._known: dict[str, _Stamp] = self._stamps()

    def parcel(self, *, checkpoints: bool) -> Parcel:
        """Return what has changed; checkpoints are large, and may be left for later."""

        def counts(name: str) -> bool:
            return checkpoints or not is_checkpoint(Path(name))

        now = {name: stamp for name, stamp in self._stamps().items() if counts(name)}
        removed = tuple(name for name in self._known if counts(name) and name not in now)
        for name in removed:
            del self._known[name]
        written = {}
        for name, stamp in now.items():
            if self._known.get(name) != stamp:
                with contextlib.suppress(FileNotFoundError):  # another checkpoint has just taken its place
                    written[name] = np.fromfile(self._store.folder / name, np.uint8)
                    self._known[name] = stamp
        return Parcel(written, removed)

    def _stamps(self) -> dict[str, _Stamp]:
        """Return what tells a file from the one that was there before: files are replaced, never changed."""
        found = {}
        folders = [path for part in ("runs", "groups") for path in self._store.folder.glob(f"{part}/*")]
        for name, path in _files(self._store, folders).items():
            with contextlib.suppress(FileNotFoundError):
                seen = path.stat()
                found[name] = (seen.st_ino, seen.st_mtime_ns, seen.st_size)
        return found


def _files(store: Store, folders: Iterable[Path]) -> dict[str, Path]:
    """Return the files in some folders by their paths in the store: no locks, and nothing that is half written."""
    return {
        _name(store, path): path
        for folder in folders
        for path in folder.iterdir()
        if path.name != "lock" and not path.name.startswith(".")
    }


def _name(store: Store, path: Path) -> str:
    return path.relative_to(store.folder).as_posix()
