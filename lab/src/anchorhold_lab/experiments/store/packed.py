"""The packed part of a store: many runs in two files, each read without unpacking the others.

::

    results.jsonl.zst   a line that says what follows, then a line for each run, {"id": …, "files": {"result.json": …,
                        "spec.json": …}, "observations": {"bytes": …, "sha256": …}}
    observations.zip    <id>/observations.safetensors.zst, for each run whose probes have seen anything

A file stands in its line as its JSON value where :func:`write_json` gives its very bytes again, and as its text where
not, so that every file is unpacked with the bytes that it had. The archive may hold more than the lines name: it is
written before them.
"""

import errno
import hashlib
import json
import re
import struct
import zipfile
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import IO, Any

from zstandard import ZstdCompressor, ZstdDecompressor, ZstdError, frame_content_size

from anchorhold.errors import DamagedError
from anchorhold_lab.experiments.store.reading import unreadable

RESULTS, OBSERVATIONS = "results.jsonl.zst", "observations.zip"
OBSERVED = "observations.safetensors"
FILE_NAME = re.compile(r"(result|spec|failure-[1-9][0-9]{0,8})\.json")
LARGEST = 2**30
"""The most bytes of results that are packed or unpacked together: 200,000 runs, and what a hostile file can ask for."""
_LINE = re.compile(rb'\{"id":"([0-9a-f]{16})",')
_ENTRY = re.compile(rf"([0-9a-f]{{16}})/{re.escape(OBSERVED)}\.zst")
_LEVEL = 19
_LARGEST_WINDOW = 2**27
"""The most bytes of memory that an archive can ask for; level 19 takes 2**23."""
_CHUNK = 2**20


@dataclass(frozen=True)
class Observed:
    """The size and the checksum of a run's observations."""

    bytes: int
    sha256: str

    @classmethod
    def of(cls, path: Path) -> "Observed":
        """Return those of a file."""
        with path.open("rb") as file:
            return cls(path.stat().st_size, hashlib.file_digest(file, "sha256").hexdigest())


@dataclass(frozen=True)
class PackedRun:
    """A run's files."""

    id: str
    files: Mapping[str, Any]
    """By name, as a JSON value or as text."""
    observed: Observed | None = None

    @classmethod
    def of(cls, id: str, contents: Mapping[str, bytes], observed: Observed | None) -> "PackedRun":
        """Return a run by what its files hold."""
        return cls(id, {name: _as_value(contents[name]) for name in sorted(contents)}, observed)

    def content(self, name: str) -> bytes | None:
        """Return the very bytes of a file; ``None`` for one that the run does not have."""
        if name not in self.files:
            return None
        found = self.files[name]
        return found.encode() if isinstance(found, str) else write_json(found)

    def value(self, name: str) -> Any:
        """Return what a file says."""
        found = self.files[name]
        return json.loads(found) if isinstance(found, str) else found

    def line(self) -> bytes:
        """Return the run as a line of JSON."""
        seen = {} if self.observed is None else {"observations": vars(self.observed)}
        return json.dumps({"id": self.id, "files": self.files, **seen}, separators=(",", ":")).encode()


class Pack:
    """The packed runs of a store.

    Args:
        path: the file of results.
        lines: the runs, each as its line, by id.
        archive: the file of their observations; the one beside the results if left out.
    """

    def __init__(self, path: Path, lines: Mapping[str, bytes], archive: Path | None = None) -> None:
        self.path = path
        self.archive = archive or path.with_name(OBSERVATIONS)
        self._lines = lines
        self._last: PackedRun | None = None

    @property
    def ids(self) -> list[str]:
        """The ids of all runs."""
        return list(self._lines)

    def run(self, id: str) -> PackedRun | None:
        """Return a run, if it is packed."""
        line, last = self._lines.get(id), self._last
        if line is None or (last is not None and last.id == id):  # who reads a run asks for one file after the other
            return None if line is None else last
        try:
            found = json.loads(line)
            files, seen = found["files"], found.get("observations")
            observed = None if seen is None else Observed(int(seen["bytes"]), seen["sha256"])
            right = bool(files) and all(map(FILE_NAME.fullmatch, files))
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            raise damaged_pack(self.path, f"run {id}: {type(error).__name__}: {error}") from error
        if not right:
            raise damaged_pack(self.path, f"run {id} has other files than a run's")
        self._last = PackedRun(id, files, observed)
        return self._last

    def check_observations(self, run: PackedRun) -> None:
        """Refuse a run whose observations the archive does not have."""
        if run.observed is not None and run.id not in self.entries:
            raise DamagedError(
                f"{self.archive} has no observations of run {run.id}: another file was put in its place. The run's "
                f"result is whole. Restore {self.archive}."
            )

    def observations(self, run: PackedRun) -> Iterator[bytes]:
        """Give what the probes of a run have seen, piece by piece; refused, at the latest at its end, unless whole."""
        self.check_observations(run)
        digest, size, whole = hashlib.sha256(), 0, run.observed
        try:
            with zipfile.ZipFile(self.archive) as archive, archive.open(self._entry(run.id)) as source:
                reader = ZstdDecompressor(max_window_size=_LARGEST_WINDOW).stream_reader(source)
                while chunk := reader.read(_CHUNK):
                    size += len(chunk)
                    if whole is None or size > whole.bytes:
                        raise zipfile.BadZipFile("there are more of them than were packed")
                    digest.update(chunk)
                    yield chunk
        except _BROKEN as error:
            raise _broken(self.archive, error, f"the observations of run {run.id}: ") from error
        if Observed(size, digest.hexdigest()) != whole:
            raise damaged_pack(self.archive, f"the observations of run {run.id} do not match their checksum")

    def compressed(self, id: str) -> bytes:
        """Return a run's observations as the archive holds them."""
        try:
            with zipfile.ZipFile(self.archive) as archive:
                return archive.read(self._entry(id))
        except _BROKEN as error:
            raise _broken(self.archive, error, f"the observations of run {id}: ") from error

    def _entry(self, id: str) -> zipfile.ZipInfo:
        entry = self.entries[id]
        if entry.compress_type != zipfile.ZIP_STORED:  # which could unpack to any size before it is looked at
            raise zipfile.BadZipFile("they were compressed twice")
        return entry

    @cached_property
    def entries(self) -> Mapping[str, zipfile.ZipInfo]:
        """What the archive holds, by the ids of runs."""
        return archive_entries(self.archive)


_BROKEN = (zipfile.BadZipFile, ZstdError, ValueError, LookupError, EOFError, OSError, RuntimeError, struct.error)
"""What reading a damaged archive raises; NotImplementedError is a RuntimeError."""


def read_pack(path: Path) -> Pack:
    """Return the packed runs of a store by the file of their results; refuse one that is not whole.

    Raise OSError if it cannot be read.
    """
    content = path.read_bytes()
    try:
        size = frame_content_size(content)
        if not 0 <= size <= LARGEST:
            raise damaged_pack(path, f"it unpacks to {size:,} bytes; expected at most {LARGEST:,}")
        text = ZstdDecompressor().decompress(content, max_output_size=LARGEST, allow_extra_data=False)
    except (ZstdError, MemoryError) as error:
        raise damaged_pack(path, error) from error
    end = text.find(b"\n", 0, _CHUNK) + 1
    try:
        header = json.loads(text[:end])
        known = header["layout"] == 1
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise damaged_pack(path, "its first line is not that of packed runs") from error
    if not known:
        raise DamagedError(f"{path} has layout {header['layout']!r}; expected 1. Read it with a later anchorhold-lab.")
    body = memoryview(text)[end:]
    if header.get("sha256") != hashlib.sha256(body).hexdigest():
        raise damaged_pack(path, "its content does not match its checksum")
    lines = text[end:].splitlines()
    found = {match[1].decode(): line for line in lines if (match := _LINE.match(line)) is not None}
    if not len(found) == len(lines) == header.get("runs"):
        raise damaged_pack(path, f"{header.get('runs')} runs were packed, and {len(found)} are there")
    return Pack(path, found)


def encoded(runs: Iterable[PackedRun]) -> bytes:
    """Return the content of the file of results: equal runs have equal files."""
    lines = [run.line() for run in sorted(runs, key=lambda run: run.id)]
    body = b"".join(line + b"\n" for line in lines)
    header = {"layout": 1, "runs": len(lines), "sha256": hashlib.sha256(body).hexdigest()}
    text = json.dumps(header).encode() + b"\n" + body
    if len(text) > LARGEST:
        raise ValueError(f"{len(text):,} bytes of results; expected at most {LARGEST:,}")
    return ZstdCompressor(level=_LEVEL, write_checksum=True).compress(text)


def write_archive(file: IO[bytes], observations: Iterable[tuple[str, Path | bytes]]) -> None:
    """Write an archive of observations by run: those in files, and as they are those that another archive held."""
    with zipfile.ZipFile(file, "w", zipfile.ZIP_STORED) as archive:
        for run, found in observations:
            made = zipfile.ZipInfo(f"{run}/{OBSERVED}.zst", (1980, 1, 1, 0, 0, 0))  # equal runs have equal archives
            made.create_system, made.external_attr = 3, 0o644 << 16  # as on Unix, wherever it is made
            with archive.open(made, "w", force_zip64=True) as target:
                if isinstance(found, bytes):
                    target.write(found)
                else:
                    with found.open("rb") as source:
                        ZstdCompressor(level=_LEVEL, write_checksum=True).copy_stream(source, target)


def archive_entries(path: Path) -> Mapping[str, zipfile.ZipInfo]:
    """Return what an archive of observations holds, by the ids of runs; refuse anything else."""
    try:
        with zipfile.ZipFile(path) as archive:
            entries = archive.infolist()
    except FileNotFoundError as error:
        raise DamagedError(
            f"{path} is missing: it was removed from outside. The runs' results are whole. Restore it."
        ) from error
    except _BROKEN as error:
        raise _broken(path, error) from error
    found = {match[1]: entry for entry in entries if (match := _ENTRY.fullmatch(entry.filename)) is not None}
    if len(found) != len(entries):
        raise damaged_pack(path, "it holds other files than observations, or some twice")
    return found


def _broken(path: Path, error: Exception, what: str = "") -> DamagedError:
    """Return what to say of an archive that could not be read: by the system, or since it is none."""
    if isinstance(error, OSError) and error.errno not in (
        None,
        errno.EINVAL,
    ):  # which a place before its beginning gives
        return unreadable(path, error)
    return damaged_pack(path, f"{what}{error}")


def damaged_pack(path: Path, why: Exception | str) -> DamagedError:
    """Return what to say of a packed file that cannot be used."""
    return DamagedError(
        f"{path} is damaged ({str(why).rstrip('.')}): it was cut short or changed from outside. Restore it. Nothing is "
        "written over it."
    )


def write_json(value: Any) -> bytes:
    """Return a value as a store's files have it."""
    return (json.dumps(value, indent=1) + "\n").encode()


def _as_value(content: bytes) -> Any:
    """Return a file's JSON value if that gives its bytes again, else its text."""
    value = json.loads(content)
    return value if isinstance(value, dict) and write_json(value) == content else content.decode()
