"""One file over HTTP: from several mirrors, resumed where it stopped, checked, and either whole or absent.

What has arrived lies beside the target as ``*.part`` and is kept, so that the next attempt, or the next call, goes on
from there.
"""

import hashlib
import http.client
import os
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Sequence
from pathlib import Path

from holdfast.errors import DataError
from holdfast.lab.data.sources import Download

Told = Callable[[Download, int], None]
"""Is told of a download and how many of its bytes have arrived."""

PAUSES = (1.0, 2.0, 4.0)
"""Seconds to wait before going through the mirrors again; nothing new on any of them the last time ends it."""

_BLOCK = 1 << 16
_TIMEOUT = 30.0
_FINAL = (401, 403, 404, 410, 416)
"""Answers that will not change: no such file, not for us, or (416) a shorter one."""


class DownloadError(DataError):
    """No mirror could give the file; the message says what each of them answered."""


class _InterruptedError(Exception):
    """The mirror may do better next time."""


class _UselessError(Exception):
    """The mirror does not have the file, or has another one."""


def download(
    wanted: Download,
    target: Path,
    mirrors: Sequence[str],
    *,
    told: Told = lambda *_: None,
    pause: Callable[[float], None] = time.sleep,
) -> None:
    """Put a file in its place, or raise a :class:`DownloadError` and leave what was there.

    Args:
        wanted: which file, with its length and checksum.
        target: where it goes.
        mirrors: the addresses of folders that have it; the first that works is used.
        told: is told how much has arrived.
        pause: waits some seconds between attempts.
    """
    part = target.with_name(target.name + ".part")
    answers: dict[str, str] = {}
    left = list(mirrors)
    fruitless = 0
    while True:
        before = _size(part)
        for mirror in tuple(left):
            try:
                _receive(wanted, part, mirror, told)
            except _UselessError as error:
                answers[mirror] = str(error)
                left.remove(mirror)
            except _InterruptedError as error:
                answers[mirror] = str(error)
            else:
                part.replace(target)
                return
        fruitless = 0 if _size(part) > before else fruitless + 1
        if not left or fruitless > len(PAUSES):
            listed = "; ".join(f"{mirror}{wanted.name}: {answer}" for mirror, answer in answers.items())
            raise DownloadError(f"{wanted.name} could not be downloaded. {listed}.")
        pause(PAUSES[max(0, fruitless - 1)])


def md5_of(path: Path) -> str:
    """Return a file's md5, which is what the publishers give; the content is checked by sha256 once it is read."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, lambda: hashlib.md5(usedforsecurity=False)).hexdigest()


def _receive(wanted: Download, part: Path, mirror: str, told: Told) -> None:
    """Bring the part to its full length and check it."""
    if _size(part) > wanted.size:
        part.unlink()
    resumed = _size(part) > 0
    if _size(part) < wanted.size:
        _append(wanted, part, mirror, told)
    if md5_of(part) == wanted.md5:
        return
    part.unlink()
    if resumed:  # the fault may lie in what was there before, so this mirror gets another chance
        raise _InterruptedError("what had arrived before was wrong, so it starts anew")
    raise _UselessError(f"has another file of this name, not the published one (md5 {wanted.md5})")


def _append(wanted: Download, part: Path, mirror: str, told: Told) -> None:
    start = _size(part)
    with _open(mirror + wanted.name, start) as response:
        if response.status != http.client.PARTIAL_CONTENT:  # it sends the whole file instead
            start = 0
        # A login page or an error page often comes as a success; its length tells.
        if response.length is not None and response.length != wanted.size - start:
            raise _UselessError(f"offers {response.length} bytes where {wanted.size - start} were expected")
        with part.open("ab") as file:
            file.truncate(start)
            told(wanted, start)
            while block := _read(response):
                start += len(block)
                if start > wanted.size:
                    raise _UselessError(f"sends more than the {wanted.size} bytes of the published file")
                file.write(block)
                told(wanted, start)
            file.flush()
            os.fsync(file.fileno())
    if start < wanted.size:
        raise _InterruptedError(f"the connection ended after {start} of {wanted.size} bytes")


def _open(address: str, start: int) -> http.client.HTTPResponse:
    headers = {"Range": f"bytes={start}-"} if start else {}
    request = urllib.request.Request(address, headers=headers)  # noqa: S310 (fetch takes http and https alone)
    try:
        response: http.client.HTTPResponse = urllib.request.urlopen(request, timeout=_TIMEOUT)  # noqa: S310
    except urllib.error.HTTPError as error:
        with error:
            kind = _UselessError if error.code in _FINAL else _InterruptedError
            raise kind(f"answers {error.code} {error.reason}") from error
    except urllib.error.URLError as error:
        raise _InterruptedError(f"cannot be reached ({error.reason})") from error
    except (OSError, http.client.HTTPException) as error:
        raise _InterruptedError(f"broke off ({error})") from error
    return response


def _read(response: http.client.HTTPResponse) -> bytes:
    try:
        return response.read(_BLOCK)
    except (OSError, http.client.HTTPException) as error:
        raise _InterruptedError(f"broke off ({error})") from error


def _size(path: Path) -> int:
    return path.stat().st_size if path.exists() else 0
