"""Which files runs have and when each was last changed, from the folders alone: no file is opened."""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

_READ = ("spec.json", "result.json")
_ONLY_THERE = "observations.safetensors"


class Stamp(NamedTuple):
    """The state of a run's files."""

    text: str
    """Name, size, times of change and inode of every file that a row is made from. Whoever writes such a file, in place
    or anew, changes its stamp, be it also with the same length and a time of modification that was set back: nobody can
    set the time of the inode's change."""
    newest: int
    """The last of those times, in nanoseconds."""


def stamps(runs: Path) -> dict[str, Stamp | None]:
    """Return the stamps of all runs by id, sorted; ``None`` for one that cannot be told, which has to be read to know.

    Raises:
        OSError: the folder of all runs is there and cannot be read.
    """
    try:
        with os.scandir(runs) as folders:
            names = sorted(folder.name for folder in folders if folder.is_dir())
    except FileNotFoundError:
        return {}
    return dict(_run_stamps(runs, names))


def _run_stamps(runs: Path, names: list[str]) -> Iterator[tuple[str, Stamp | None]]:
    for name in names:
        try:
            found = stamp_of(f"{runs}{os.sep}{name}")
        except OSError:
            yield name, None
        else:
            if found is not None:
                yield name, found


def stamp_of(folder: str) -> Stamp | None:
    """Return the stamp of a run's folder; ``None`` for a folder that is no run's."""
    parts: list[str] = []
    newest, is_run = 0, False
    with os.scandir(folder) as files:
        for file in files:
            name = file.name
            read = name in _READ
            if read or (name.startswith("failure-") and name.endswith(".json")):
                stat = file.stat()
                parts.append(f"{name} {stat.st_size} {stat.st_mtime_ns} {stat.st_ctime_ns} {stat.st_ino}")
                newest = max(newest, stat.st_mtime_ns, stat.st_ctime_ns)
                is_run |= read
            elif name == _ONLY_THERE:
                parts.append(name)
    return Stamp("|".join(sorted(parts)), newest) if is_run else None
