"""Which files runs have and when each was last changed, from the folders alone: no file is opened."""

import os
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

_READ = ("spec.json", "result.json")
_ONLY_THERE = "observations.safetensors"
_PACKED = ("observations.zip", "results.jsonl.zst")


class Stamp(NamedTuple):
    """The state of a run's files."""

    text: str
    """Name, size, times of change and inode of every file that a row is made from. Whoever writes such a file, in place
    or anew, changes its stamp, be it also with the same length and a time of modification that was set back: nobody can
    set the time of the inode's change."""
    newest: int
    """The last of those times, in nanoseconds."""


def stamps(runs: Path, packed: Iterable[str] = (), pack: Stamp | None = None) -> dict[str, Stamp | None]:
    """Return the stamps of all runs by id, sorted; ``None`` for one that cannot be told, which has to be read to know.

    Raise OSError if the folder of all runs is there and cannot be read.

    Args:
        runs: the folder of all runs.
        packed: the ids of those that are packed.
        pack: the stamp of the packed files, of which those have a part.
    """
    try:
        with os.scandir(runs) as folders:
            loose = {folder.name for folder in folders if folder.is_dir()}
    except FileNotFoundError:
        loose = set()
    found: dict[str, Stamp | None] = dict.fromkeys(packed, pack)
    for name in loose:
        try:
            stamp = stamp_of(f"{runs}{os.sep}{name}")
        except OSError:
            found[name] = None
            continue
        if name in found and pack is not None:
            found[name] = Stamp(f"{pack.text}|{stamp.text}", max(pack.newest, stamp.newest))
        elif any(name in stamp.text for name in _READ):
            found[name] = stamp
    return dict(sorted(found.items()))


def pack_stamp(folder: Path) -> Stamp | None:
    """Return the stamp of a store's packed files; ``None`` if no run is packed.

    Raise OSError if a packed file is there and cannot be looked at.
    """
    found = [_stamp_of_file(name, stat) for name in _PACKED if (stat := _stat(folder / name)) is not None]
    there = any(stamp.text.startswith(_PACKED[1]) for stamp in found)
    return _joined(found) if there else None


def stamp_of(folder: str) -> Stamp:
    """Return the stamp of a run's folder."""
    found: list[Stamp] = []
    with os.scandir(folder) as files:
        for file in files:
            name = file.name
            if name in _READ or (name.startswith("failure-") and name.endswith(".json")):
                found.append(_stamp_of_file(name, file.stat()))
            elif name == _ONLY_THERE:
                found.append(Stamp(name, 0))
    return _joined(found)


def _stamp_of_file(name: str, stat: os.stat_result) -> Stamp:
    text = f"{name} {stat.st_size} {stat.st_mtime_ns} {stat.st_ctime_ns} {stat.st_ino}"
    return Stamp(text, max(stat.st_mtime_ns, stat.st_ctime_ns))


def _joined(stamps: list[Stamp]) -> Stamp:
    return Stamp("|".join(sorted(stamp.text for stamp in stamps)), max((stamp.newest for stamp in stamps), default=0))


def _stat(path: Path) -> os.stat_result | None:
    try:
        return path.stat()
    except (FileNotFoundError, NotADirectoryError):
        return None
