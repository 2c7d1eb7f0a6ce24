"""The index of a store: rows that were read before, each with the stamp of the files that it was read from.

It is one file, ``index.json``, and nothing but a shortcut. A row counts only while the run's files have the very stamp
that they had when it was read, and only for the code that read it: another version may understand a file differently.
An index that is missing, damaged, of other code, or in a folder that cannot be written costs time and nothing else. It
is replaced as a whole, so that several processes may read and write it at once.

Runs that are packed together have the packed files' stamp in common, and the index knows which they are.

A file that is changed twice within one tick of the file system's clock may keep its stamp. So what was changed in the
last seconds before it was read is not taken into the index.
"""

import contextlib
import functools
import hashlib
import json
import os
import tempfile
import time
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import anchorhold
import anchorhold_lab
from anchorhold_lab.experiments.specs.canonical import frozen
from anchorhold_lab.experiments.store.listing.rows import Figures, Row
from anchorhold_lab.experiments.store.listing.stamps import Stamp

FILE = "index.json"
_LAYOUT = 2
_TICK = 2_000_000_000
"""Nanoseconds: file systems count time in steps of 2 seconds at most."""
_LEFT_BEHIND = 3600
"""Seconds after which a half-written index is nobody's."""


class Index:
    """The rows that are known of a store.

    Args:
        folder: the store's.
    """

    def __init__(self, folder: Path) -> None:
        self._path = folder / FILE
        self._began = time.monotonic_ns()
        self._known, self._packed = _read(self._path)

    def row(self, run: str, stamp: Stamp) -> Row | None:
        """Return what was read of a run, if its files are still those."""
        text, row = self._known.get(run, ("", None))
        return row if text == stamp.text else None

    def packed(self, stamp: Stamp) -> list[str] | None:
        """Return the ids of all runs that are packed, if the packed files are still those; ``None`` if they are not."""
        text, ids = self._packed
        return ids if text == stamp.text else None

    def replace(self, rows: Iterable[tuple[Stamp, Row]], pack: Stamp | None, packed: Iterable[str]) -> None:
        """Let these be the rows that are known, where the folder can be written.

        Args:
            rows: with the stamps that their files had before they were read, since this object was made.
            pack: the stamp that the packed files had.
            packed: the ids of all runs that were in them.
        """
        with contextlib.suppress(OSError):  # where it cannot be written, nothing is lost
            settled = self._now() - (time.monotonic_ns() - self._began) - _TICK
            known = [(stamp.text, row) for stamp, row in rows if stamp.newest < settled]
            counts = pack is not None and pack.newest < settled
            _write(self._path, known, (pack.text, list(packed)) if pack is not None and counts else ("", []))

    def _now(self) -> int:
        """Return the time by the clock of the file system, which may be another machine's."""
        with tempfile.TemporaryFile(dir=self._path.parent) as file:
            return os.fstat(file.fileno()).st_mtime_ns


def _read(path: Path) -> tuple[dict[str, tuple[str, Row]], tuple[str, list[str]]]:
    """Return what an index holds, rows and packed runs: nothing unless all of it is as this code wrote it."""
    nothing: tuple[dict[str, tuple[str, Row]], tuple[str, list[str]]] = {}, ("", [])
    try:
        first, _, body = path.read_bytes().partition(b"\n")
        if json.loads(first) != _header(body):
            return nothing
        content = json.loads(body)
        settings = [{name: frozen(value) for name, value in setting.items()} for setting in content["settings"]]
        rows = {
            run: (stamp, Row(run, status, settings[setting], seed, tuple(unusual), figures and Figures(*figures)))
            for run, stamp, status, setting, seed, unusual, figures in content["rows"]
        }
        return rows, tuple(content["packed"])
    except (OSError, ValueError, TypeError, KeyError, IndexError):
        return nothing


def _write(path: Path, rows: Iterable[tuple[str, Row]], packed: tuple[str, list[str]]) -> None:
    from anchorhold.whole_files import write_whole  # noqa: PLC0415 (it takes torch, which reading an index does not)

    settings: dict[int, int] = {}
    distinct: list[Mapping[str, Any]] = []
    lines = []
    for stamp, row in rows:
        number = settings.setdefault(id(row.setting), len(distinct))
        if number == len(distinct):
            distinct.append(row.setting)
        lines.append([row.id, stamp, row.status, number, row.seed, row.unusual, row.figures])
    body = json.dumps({"settings": distinct, "rows": lines, "packed": packed}, default=dict).encode()
    write_whole(path, json.dumps(_header(body)).encode() + b"\n" + body)
    for left in path.parent.glob(f".{path.name}.*"):  # of processes that were killed
        if time.time() - left.stat().st_mtime > _LEFT_BEHIND:
            left.unlink()


def _header(body: bytes) -> dict[str, Any]:
    return {"index": _LAYOUT, "code": _code(), "sha256": hashlib.sha256(body).hexdigest()}


@functools.cache
def _code() -> str:
    """Return a digest of the source of library and lab: a row is decided by all of it, from specs to settings."""
    found = hashlib.sha256()
    for file in (anchorhold.__file__, anchorhold_lab.__file__):
        folder = Path(file).parent
        for path in sorted(folder.rglob("*.py")):
            found.update(path.relative_to(folder.parent).as_posix().encode() + b"\0" + path.read_bytes() + b"\0")
    return found.hexdigest()
