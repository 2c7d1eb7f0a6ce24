"""A mirror that breaks HTTP in every way: the file arrives whole, or is refused. ``python -m torture.hostile_server``."""

import contextlib
import gzip
import hashlib
import itertools
import os
import random
import signal
import socket
import struct
import tempfile
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType

from holdfast.lab.data import http_only
from holdfast.lab.data.download import DownloadError, download
from holdfast.lab.data.sources import Download
from torture.outcome import Outcome, main

CONTENT = random.Random(0).randbytes(20_000)
WANTED = Download("thing.gz", len(CONTENT), hashlib.md5(CONTENT, usedforsecurity=False).hexdigest())
OLD = b"what was there before"
SECONDS = 20
"""After which a download counts as hung."""

Behaviour = Callable[[random.Random, socket.socket, int], None]
"""Answers a request for all from some byte on."""

BEHAVIOURS: dict[str, Behaviour] = {}


def behaviour(name: str) -> Callable[[Behaviour], Behaviour]:
    def enter(function: Behaviour) -> Behaviour:
        BEHAVIOURS[name] = function
        return function

    return enter


def _head(status: str = "200 OK", *headers: str) -> bytes:
    return "\r\n".join([f"HTTP/1.1 {status}", "Connection: close", *headers, "", ""]).encode("latin-1")


def _honest_head(start: int, length: int | str | None = None) -> bytes:
    ranges = (f"Content-Range: bytes {start}-{len(CONTENT) - 1}/{len(CONTENT)}",) if start else ()
    told = len(CONTENT) - start if length is None else length
    return _head("206 Partial Content" if start else "200 OK", f"Content-Length: {told}", *ranges)


def _honest(draw: random.Random, line: socket.socket, start: int) -> None:
    line.sendall(_honest_head(start) + CONTENT[start:])


def _chunked(content: bytes, size: int) -> bytes:
    parts = [content[i : i + size] for i in range(0, len(content), size)]
    return b"".join(b"%x\r\n%s\r\n" % (len(part), part) for part in parts)


@behaviour("honest")
def _(draw: random.Random, line: socket.socket, start: int) -> None:
    _honest(draw, line, start)


@behaviour("honest, in chunks")
def _(draw: random.Random, line: socket.socket, start: int) -> None:
    head = _head("206 Partial Content" if start else "200 OK", "Transfer-Encoding: chunked")
    line.sendall(head + _chunked(CONTENT[start:], draw.choice([1, 100, 5000, 10**6])) + b"0\r\n\r\n")


@behaviour("truncated")
def _(draw: random.Random, line: socket.socket, start: int) -> None:
    line.sendall(_honest_head(start) + CONTENT[start : start + draw.randrange(len(CONTENT))])


@behaviour("truncated headers")
def _(draw: random.Random, line: socket.socket, start: int) -> None:
    head = _honest_head(start)
    line.sendall(head[: draw.randrange(len(head))])


@behaviour("wrong length")
def _(draw: random.Random, line: socket.socket, start: int) -> None:
    lengths = (
        0,
        1,
        -1,
        -20_000,
        10**6,
        10**30,
        "9" * 5000,
        "",
        "abc",
        "0x10",
        "1e3",
        "+20000",
        "20_000",
        "20000, 20000",
    )
    line.sendall(_honest_head(start, draw.choice(lengths)) + CONTENT[start:])


@behaviour("two lengths")
def _(draw: random.Random, line: socket.socket, start: int) -> None:
    line.sendall(_head("200 OK", f"Content-Length: {len(CONTENT)}", "Content-Length: 5") + CONTENT)


@behaviour("wrong chunk size")
def _(draw: random.Random, line: socket.socket, start: int) -> None:
    sizes = (
        b"-1",
        b"-5",
        b"-4e20",
        b"zz",
        b"",
        b"0x10",
        b"1_0",
        b"f" * 100,
        b"\xff\xfe",
        b"7fffffffffffffff",
        b" 5 ",
        b"5;x=1",
    )
    line.sendall(_head("200 OK", "Transfer-Encoding: chunked") + draw.choice(sizes) + b"\r\n" + CONTENT)


@behaviour("chunks without an end")
def _(draw: random.Random, line: socket.socket, start: int) -> None:
    line.sendall(_head("200 OK", "Transfer-Encoding: chunked"))
    while True:
        line.sendall(_chunked(CONTENT, 1000))


@behaviour("trailers without an end")
def _(draw: random.Random, line: socket.socket, start: int) -> None:
    line.sendall(_head("200 OK", "Transfer-Encoding: chunked") + _chunked(CONTENT, 1000) + b"0\r\n")
    while True:
        line.sendall(b"X-More: and more\r\n" * 1000)


@behaviour("a body without an end")
def _(draw: random.Random, line: socket.socket, start: int) -> None:
    line.sendall(_head())
    while True:
        line.sendall(CONTENT)


@behaviour("headers without an end")
def _(draw: random.Random, line: socket.socket, start: int) -> None:
    line.sendall(b"HTTP/1.1 200 OK\r\n")
    while True:
        line.sendall(draw.choice([b"X-More: and more\r\n", b"x" * 1000]) * 100)


@behaviour("one 100 Continue after another")
def _(draw: random.Random, line: socket.socket, start: int) -> None:
    while True:
        line.sendall(b"HTTP/1.1 100 Continue\r\n\r\n" * 1000)


@behaviour("a redirect elsewhere")
def _(draw: random.Random, line: socket.socket, start: int) -> None:
    places = (
        "ftp://127.0.0.1/thing.gz",
        "file:///etc/passwd",
        "data:text/plain,hello",
        "javascript:alert(1)",
        "gopher://x/",
        "http://[::1",
        "http://]/",
        "http://127.0.0.1:port/",
        "http://127.0.0.1:99999/",
        "http://127.0.0.1:-1/",
        "http://127.0.0.1:0/",
        "http:///nothing",
        "http://",
        "//",
        "",
        "http://" + "a" * 100 + "/",
        "http://a..b/",
        "http://\xe9\xff/",
        "http://127.0.0.1/ with spaces",
        "http://user:password@127.0.0.1:1/",
        "HTTPS://127.0.0.1:1/",
        "http://127.0.0.1:1/\x00",
        "/" * 60_000,
        "?" * 1000,
    )
    code = draw.choice(
        ["301 Moved", "302 Found", "303 See Other", "307 Again", "308 For good", "300 Many", "305 Proxy"]
    )
    line.sendall(_head(code, f"Location: {draw.choice(places)}"))


@behaviour("a redirect to itself")
def _(draw: random.Random, line: socket.socket, start: int) -> None:
    line.sendall(_head("302 Found", f"Location: {draw.choice(['', '/', './'])}{WANTED.name}"))


@behaviour("a redirect with a page without an end")
def _(draw: random.Random, line: socket.socket, start: int) -> None:
    line.sendall(_head("302 Found", "Location: /elsewhere"))
    while True:
        line.sendall(CONTENT)


@behaviour("a redirect without a place")
def _(draw: random.Random, line: socket.socket, start: int) -> None:
    line.sendall(_head("302 Found"))


@behaviour("no status")
def _(draw: random.Random, line: socket.socket, start: int) -> None:
    lines = (
        "",
        "HTTP/1.1\r\n",
        "HTTP/9.9 200 OK\r\n",
        "HTTP/1.1 abc\r\n",
        "HTTP/1.1 99 No\r\n",
        "HTTP/1.1 1000 x\r\n",
        "ICY 200 OK\r\n",
    )
    line.sendall(draw.choice(lines).encode() + b"\r\n" + CONTENT)


@behaviour("a status of its own")
def _(draw: random.Random, line: socket.socket, start: int) -> None:
    codes = (
        "204 None",
        "206 Partial Content",
        "304 Same",
        "401 Who",
        "418 Teapot",
        "500 Oh",
        "503 Later",
        "999 What",
        "101 Other",
    )
    reason = draw.choice(["", "\x1b[2J\x1b[31mred", "é" * 2000, "\x00\x07"])
    line.sendall(_head(draw.choice(codes) + reason, f"Content-Length: {len(CONTENT)}") + CONTENT)


@behaviour("another range than asked for")
def _(draw: random.Random, line: socket.socket, start: int) -> None:
    wrong = draw.randrange(len(CONTENT))
    told = f"Content-Range: bytes {wrong}-{len(CONTENT) - 1}/{len(CONTENT)}"
    line.sendall(_head("206 Partial Content", told) + CONTENT[wrong:])


@behaviour("wrong content")
def _(draw: random.Random, line: socket.socket, start: int) -> None:
    content = bytearray(CONTENT)
    content[draw.randrange(len(content))] ^= 1 << draw.randrange(8)
    line.sendall(_honest_head(start) + bytes(content[start:]))


@behaviour("half of wrong content")
def _(draw: random.Random, line: socket.socket, start: int) -> None:
    line.sendall(_honest_head(start) + bytes(len(CONTENT) - start)[: len(CONTENT) // 2])


@behaviour("compressed content")
def _(draw: random.Random, line: socket.socket, start: int) -> None:
    body = gzip.compress(CONTENT)
    line.sendall(_head("200 OK", "Content-Encoding: gzip", f"Content-Length: {len(body)}") + body)


@behaviour("one byte at a time")
def _(draw: random.Random, line: socket.socket, start: int) -> None:
    line.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    answer = _honest_head(start) + CONTENT[start:]
    if draw.random() < 0.3:
        answer = b"HTTP/1.1 200 OK\r\n" + b"X: y\r\n" * 90
    for byte in answer:
        line.sendall(bytes([byte]))


@behaviour("a few bytes a connection")
def _(draw: random.Random, line: socket.socket, start: int) -> None:
    line.sendall(_honest_head(start) + CONTENT[start : start + draw.randrange(5)])


@behaviour("silence")
def _(draw: random.Random, line: socket.socket, start: int) -> None:
    line.sendall(draw.choice([b"", b"HTTP/1.1 200", _honest_head(start), _honest_head(start) + CONTENT[start:-1]]))
    line.recv(1)  # until the other side has waited long enough


@behaviour("a reset")
def _(draw: random.Random, line: socket.socket, start: int) -> None:
    line.sendall(draw.choice([b"", _honest_head(start), _honest_head(start) + CONTENT[start : start + 5000]]))
    line.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))


@behaviour("noise")
def _(draw: random.Random, line: socket.socket, start: int) -> None:
    line.sendall(draw.randbytes(draw.randrange(5000)))


@behaviour("an answer with noise in it")
def _(draw: random.Random, line: socket.socket, start: int) -> None:
    answer = bytearray(_honest_head(start) + CONTENT[start:])
    for _ in range(draw.randrange(1, 10)):
        answer[draw.randrange(min(len(answer), draw.choice([20, 150, len(answer)])))] = draw.randrange(256)
    line.sendall(bytes(answer))


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
    def end(number: int, frame: FrameType | None) -> None:
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
