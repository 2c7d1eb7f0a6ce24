"""A mirror that breaks HTTP in every way: a file arrives whole, or is refused. ``python -m torture.hostile_server``."""

import contextlib
import hashlib
import itertools
import os
import random
import signal
import socket
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path

from anchorhold_lab.data import http_only
from anchorhold_lab.data.download import DownloadError, download
from anchorhold_lab.data.sources import Download
from torture.broken_http import BEHAVIOURS, CONTENT, NAME
from torture.outcome import Outcome, main

WANTED = Download(NAME, len(CONTENT), hashlib.md5(CONTENT, usedforsecurity=False).hexdigest())
OLD = b"what was there before"
SECONDS = 20
"""After which a download counts as hung."""


class Server:
    """Answers one connection after another, each as the next of a trial's behaviours says, and the last for good."""

    def __init__(self) -> None:
        self._listening = socket.create_server(("127.0.0.1", 0), backlog=64)
        self.address = f"http://127.0.0.1:{self._listening.getsockname()[1]}/"
        self.script: list[str] = ["honest"]
        self.draw = random.Random(0)
        self._serving = threading.Thread(target=self._serve, daemon=True)
        self._serving.start()

    def close(self) -> None:
        """Answer nobody any more."""
        self._listening.shutdown(socket.SHUT_RDWR)
        self._serving.join()
        self._listening.close()

    def _serve(self) -> None:
        while True:
            try:
                line, _ = self._listening.accept()
            except OSError:  # it was closed
                return
            # Each in a thread of its own: the last trial's may still be talking to nobody.
            name = self.script.pop(0) if len(self.script) > 1 else self.script[0]
            draw = random.Random(self.draw.random())
            threading.Thread(target=self._answer, args=(line, name, draw), daemon=True).start()

    def _answer(self, line: socket.socket, name: str, draw: random.Random) -> None:
        with line, contextlib.suppress(OSError):
            line.settimeout(5)
            request = b""
            while b"\r\n\r\n" not in request and (more := line.recv(65536)):
                request += more
            start = 0
            for header in request.split(b"\r\n"):
                if header.lower().startswith(b"range: bytes="):
                    start = int(header[len(b"range: bytes=") :].rstrip(b"-"))
            BEHAVIOURS[name](draw, line, start)
            line.shutdown(socket.SHUT_WR)


class _HungError(BaseException):
    pass


@contextlib.contextmanager
def _ended_after(seconds: float) -> Iterator[None]:
    def end(*_: object) -> None:
        raise _HungError

    before = signal.signal(signal.SIGALRM, end)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


@contextlib.contextmanager
def _impatient() -> Iterator[None]:
    """Wait for a silent server as briefly as it takes to know that it is silent, and ask it without a proxy."""
    usual, http_only.TIMEOUT = http_only.TIMEOUT, 0.1
    proxies = os.environ.get("no_proxy")
    os.environ["no_proxy"] = "*"
    try:
        yield
    finally:
        http_only.TIMEOUT = usual
        os.environ.pop("no_proxy")
        if proxies is not None:
            os.environ["no_proxy"] = proxies


def trials(seed: int, count: int | None = None) -> Iterator[Outcome]:
    """Download a file from a server that misbehaves; trial k has the seed ``seed + k``.

    Args:
        seed: the first trial's.
        count: how many, without end if left out.
    """
    with contextlib.closing(Server()) as server, _impatient(), tempfile.TemporaryDirectory() as folder:
        for number in itertools.count(seed) if count is None else range(seed, seed + count):
            yield _tried(server, Path(folder) / str(number), number)


def _tried(server: Server, folder: Path, seed: int) -> Outcome:
    draw = random.Random(seed)
    names = sorted(BEHAVIOURS)
    script = [names[seed % len(names)], *draw.choices(names, k=draw.randrange(4))]
    kind = script[0]
    if draw.random() < 0.5:
        script.append("honest")
    server.script, server.draw = list(script), random.Random(seed)
    folder.mkdir()
    target, part = folder / WANTED.name, folder / f"{WANTED.name}.part"
    if draw.random() < 0.5:
        target.write_bytes(OLD)
    if draw.random() < 0.3:
        part.write_bytes(draw.choice([CONTENT[: draw.randrange(20_000)], bytes(draw.randrange(30_000)), b""]))
    had = target.exists()
    seconds = itertools.count(step=0.25)  # a quarter of a second, as it seems, for every read
    detail = " > ".join(script)
    try:
        with _ended_after(SECONDS):
            download(WANTED, target, [server.address], pause=lambda _: None, clock=lambda: float(next(seconds)))
    except DownloadError as error:
        if had and (not target.exists() or target.read_bytes() != OLD):
            return Outcome(kind, seed, "LOST", detail)
        if target.exists() and not had:
            return Outcome(kind, seed, "SILENT CHANGE", f"{detail}: refused, and yet there is a file")
        if not str(error).isprintable():
            return Outcome(kind, seed, "TRACEBACK", f"{detail}: signs for the terminal in {str(error)!r}")
        return Outcome(kind, seed, "refused", f"{detail}: {error}")
    except _HungError:
        return Outcome(kind, seed, "HUNG", detail)
    except Exception as error:  # noqa: BLE001 (that is what is looked for)
        return Outcome(kind, seed, "TRACEBACK", f"{detail}: {type(error).__name__}: {error}")
    right = target.read_bytes() == CONTENT and not part.exists()
    return Outcome(kind, seed, "fine" if right else "SILENT CHANGE", detail)


if __name__ == "__main__":
    main(trials, __doc__ or "")
