"""One file over HTTP: from several mirrors, resumed where it stopped, checked, and either whole or absent.

What has arrived lies beside the target as ``*.part`` and is kept, so that the next attempt, or the next call, goes on
from there. ``pooch`` 1.8 and ``torch.hub`` do not resume, and hang in 5 of the 28 ways in which ``torture.broken_http``
breaks HTTP; that is why this is written here.
"""

import hashlib
import http.client
import os
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from anchorhold.errors import DataError
from anchorhold_lab.data.http_only import LEAST_RATE, BrokenOffError, Clock, UselessError, ask, read_block
from anchorhold_lab.data.sources import Download

Told = Callable[[Download, int], None]
"""Is told of a download and how many of its bytes have arrived."""

PAUSES = (1.0, 2.0, 4.0)
"""Seconds to wait before going through the mirrors again; nothing new on any of them the last time ends it."""

_BLOCK = 1 << 16
_LEAST_GAIN = LEAST_RATE
"""Bytes that make another round worth its pause: with fewer, a file would come in drops for years."""


class DownloadError(DataError):
    """No mirror could give the file; the message says what each of them answered."""


def download(
    wanted: Download,
    target: Path,
    mirrors: Sequence[str],
    *,
    told: Told = lambda *_: None,
    pause: Callable[[float], None] = time.sleep,
    clock: Clock = time.monotonic,
) -> None:
    """Put a file in its place, or raise a :class:`DownloadError` and leave what was there.

    Args:
        wanted: which file, with its length and checksum.
        target: where it goes.
        mirrors: the addresses of folders that have it; the first that works is used.
        told: is told how much has arrived.
        pause: waits some seconds between attempts.
        clock: seconds, from any beginning, by which a mirror that is too slow is known.
    """
    part = target.with_name(target.name + ".part")
    answers: dict[str, str] = {}
    left = list(mirrors)
    attempt = _Attempt(wanted, part, told, clock)
    fruitless, furthest = 0, _size(part)
    while True:
        for mirror in tuple(left):
            try:
                attempt.receive(mirror)
            except UselessError as error:
                answers[mirror] = str(error)
                left.remove(mirror)
            except BrokenOffError as error:
                answers[mirror] = str(error)
            else:
                part.replace(target)
                return
        if attempt.spoilt:  # it starts anew, so what was reached before says nothing
            attempt.spoilt, furthest = False, 0
        fruitless = 0 if _size(part) >= furthest + _LEAST_GAIN else fruitless + 1
        furthest = max(furthest, _size(part))
        if not left or fruitless > len(PAUSES):
            listed = "; ".join(f"{mirror}{wanted.name}: {answer}" for mirror, answer in answers.items())
            raise DownloadError(f"{wanted.name} could not be downloaded. {listed}.")
        pause(PAUSES[max(0, fruitless - 1)])


def md5_of(path: Path) -> str:
    """Return a file's md5, which is what the publishers give; the content is checked by sha256 once it is read."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, lambda: hashlib.md5(usedforsecurity=False)).hexdigest()


class _Attempt:
    """Brings a part to its full length and checks it, from one mirror after another."""

    def __init__(self, wanted: Download, part: Path, told: Told, clock: Clock) -> None:
        self.wanted, self.part = wanted, part
        self.spoilt = False
        """Whether what had arrived was thrown away."""
        self._told, self._clock = told, clock
        self._spoilt_with: set[str] = set()

    def receive(self, mirror: str) -> None:
        """Take what is missing from a mirror."""
        wanted, part = self.wanted, self.part
        if _size(part) > wanted.size:
            part.unlink()
        resumed = _size(part) > 0
        if _size(part) < wanted.size:
            self._append(mirror)
        if md5_of(part) == wanted.md5:
            return
        part.unlink()
        if resumed and mirror not in self._spoilt_with:
            # The fault may lie in what was there before, so this mirror gets another chance, but only one.
            self.spoilt = True
            self._spoilt_with.add(mirror)
            raise BrokenOffError("what had arrived before was wrong, so it starts anew")
        raise UselessError(f"has another file of this name, not the published one (md5 {wanted.md5})")

    def _append(self, mirror: str) -> None:
        wanted, start = self.wanted, _size(self.part)
        with ask(mirror + wanted.name, start, wanted.size, self._clock) as response:
            if response.status != http.client.PARTIAL_CONTENT:  # it sends the whole file instead
                start = 0
            # A login page or an error page often comes as a success; its length tells.
            if response.length is not None and response.length != wanted.size - start:
                raise UselessError(f"offers {response.length} bytes where {wanted.size - start} were expected")
            with self.part.open("ab") as file:
                file.truncate(start)
                self._told(wanted, start)
                while block := read_block(response, _BLOCK):
                    start += len(block)
                    if start > wanted.size:
                        raise UselessError(f"sends more than the {wanted.size} bytes of the published file")
                    file.write(block)
                    self._told(wanted, start)
                file.flush()
                os.fsync(file.fileno())
        if start < wanted.size:
            raise BrokenOffError(f"the connection ended after {start} of {wanted.size} bytes")


def _size(path: Path) -> int:
    return path.stat().st_size if path.exists() else 0
