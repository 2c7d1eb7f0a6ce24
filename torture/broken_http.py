"""Answers that are not HTTP, not all of it, or more than that: what :mod:`torture.hostile_server` says."""

import gzip
import random
import socket
import struct
from collections.abc import Callable

NAME = "thing.gz"
CONTENT = random.Random(0).randbytes(20_000)

Behaviour = Callable[[random.Random, socket.socket, int], None]
"""Answers a request for all from some byte on."""

BEHAVIOURS: dict[str, Behaviour] = {}


def behaviour(name: str) -> Callable[[Behaviour], Behaviour]:
    """Enter a behaviour by its name."""

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
    line.sendall(_head("302 Found", f"Location: {draw.choice(['', '/', './'])}{NAME}"))


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
