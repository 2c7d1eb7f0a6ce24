"""An answer over HTTP and nothing else: every hop checked, never more than was asked for, never slower than a line is.

Asked by :mod:`anchorhold_lab.data.download`. urllib itself follows a redirect to ``ftp://``, reads all of the page that
comes with one, and waits for as long as a byte arrives now and then.
"""

import http.client
import io
import ssl
import urllib.error
import urllib.request
from collections.abc import Callable
from functools import partial
from typing import Any
from urllib.parse import urljoin, urlsplit

Clock = Callable[[], float]

TIMEOUT = 30.0
"""Seconds without a single byte."""
LEAST_RATE = 1000
"""Bytes a second, over a minute: a telephone line has several times as many, and a mirror with fewer is of no use."""
_MINUTE = 60.0
_MOST_REDIRECTS = 10
_REDIRECTS = (301, 302, 303, 307, 308)
_FINAL = (401, 403, 404, 410, 416)
"""Answers that will not change: no such file, not for us, or (416) a shorter one."""
_OVERHEAD = 8
"""How many times its length a file may take on its way: chunks of a byte take six bytes each."""
_HEADERS = 1 << 20
_SHOWN = 100


class BrokenOffError(Exception):
    """The mirror may do better next time."""


class UselessError(Exception):
    """The mirror does not have the file, has another one, or cannot give it."""


def usable_address(address: str) -> bool:
    """Whether an address is one of HTTP, with a host, and without signs that have no place there."""
    try:
        parts = urlsplit(address)
        return parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0 and _is_clean(address)
    except ValueError:  # brackets without their counterpart, a port that is no number
        return False


def ask(address: str, start: int, size: int, clock: Clock) -> http.client.HTTPResponse:
    """Return the answer of whoever has a file, or where the file is said to be.

    Args:
        address: where it is.
        start: the first byte that is wanted.
        size: the length of the file.
        clock: seconds, from any beginning.
    """
    headers = {"Range": f"bytes={start}-"} if start else {}
    opener = _opener(clock, _OVERHEAD * size + _HEADERS)
    for _ in range(_MOST_REDIRECTS + 1):
        request = urllib.request.Request(address, headers=headers)  # noqa: S310 (of HTTP, as all of this file is about)
        try:
            response: http.client.HTTPResponse = opener.open(request, timeout=TIMEOUT)
        except urllib.error.HTTPError as error:
            with error:
                if error.code not in _REDIRECTS:
                    kind = UselessError if error.code in _FINAL else BrokenOffError
                    raise kind(f"answers {error.code} {printable(str(error.reason))}".rstrip()) from error
                address = _next_hop(address, error.headers.get("Location"))
        except urllib.error.URLError as error:
            raise BrokenOffError(f"cannot be reached ({printable(str(error.reason))})") from error
        except (http.client.InvalidURL, ValueError) as error:
            raise UselessError(f"has an address that cannot be used ({printable(str(error))})") from error
        except (OSError, http.client.HTTPException) as error:
            raise BrokenOffError(f"broke off ({printable(str(error) or type(error).__name__)})") from error
        else:
            return response
    raise UselessError(f"redirects more than {_MOST_REDIRECTS} times")


def read_block(response: http.client.HTTPResponse, length: int) -> bytes:
    """Return the next bytes of an answer, none at its end."""
    try:
        return response.read(length)
    except (OSError, http.client.HTTPException) as error:
        raise BrokenOffError(f"broke off ({printable(str(error) or type(error).__name__)})") from error
    except (ValueError, AssertionError) as error:  # http.client on chunks of less than no bytes
        raise BrokenOffError(f"sends what is not HTTP ({printable(str(error) or type(error).__name__)})") from error


def printable(text: str) -> str:
    """Return what a server said as it may be shown: in one short line, and nothing that a terminal would obey."""
    shown = "".join(sign if sign.isprintable() else "?" for sign in text[:_SHOWN])
    return shown if len(text) <= _SHOWN else f"{shown}…"


def _next_hop(address: str, location: str | None) -> str:
    try:
        found = urljoin(address, location or "")
    except ValueError:
        found = location or ""
    if not location or not usable_address(found):
        raise UselessError(f"redirects to {printable(location or 'nowhere')!r}; expected an address of http or https")
    return found


def _is_clean(address: str) -> bool:
    return address.isascii() and address.isprintable() and " " not in address


def _opener(clock: Clock, most: int) -> urllib.request.OpenerDirector:
    """Return what opens addresses of HTTP alone, by way of a proxy if the environment names one."""
    opener = urllib.request.OpenerDirector()
    for handler in (
        urllib.request.ProxyHandler(),
        _Http(clock, most),
        _Https(clock, most),
        urllib.request.HTTPDefaultErrorHandler(),
        urllib.request.HTTPErrorProcessor(),
        urllib.request.UnknownHandler(),
    ):
        opener.add_handler(handler)
    return opener


class _Http(urllib.request.HTTPHandler):
    def __init__(self, clock: Clock, most: int) -> None:
        super().__init__()
        self._pace = (clock, most)

    def http_open(self, req: urllib.request.Request) -> http.client.HTTPResponse:
        return self.do_open(partial(_connection, http.client.HTTPConnection, self._pace), req)


class _Https(urllib.request.HTTPSHandler):
    def __init__(self, clock: Clock, most: int) -> None:
        super().__init__()
        self._pace = (clock, most)

    def https_open(self, req: urllib.request.Request) -> http.client.HTTPResponse:
        made = partial(_connection, http.client.HTTPSConnection, self._pace)
        return self.do_open(made, req, context=ssl.create_default_context())


def _connection(kind: type[http.client.HTTPConnection], pace: tuple[Clock, int], *args: Any, **options: Any) -> Any:
    made = kind(*args, **options)
    made.response_class = partial(_PacedResponse, pace)  # type: ignore[assignment]
    return made


class _PacedResponse(http.client.HTTPResponse):
    """An answer whose bytes, from the first of its headers to the last of its trailers, are watched."""

    def __init__(self, pace: tuple[Clock, int], *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.fp = io.BufferedReader(_Paced(self.fp.detach(), *pace))

    def _read_next_chunk_size(self) -> int:
        """Refuse a chunk of less than no bytes: http.client takes one of -1 for all that ever comes, at once."""
        size: int = super()._read_next_chunk_size()  # type: ignore[misc]
        if size < 0:
            raise UselessError(f"sends a chunk of {size} bytes")
        return size


class _Paced(io.RawIOBase):
    """What a socket gives, refused where it is too much, or comes too slowly."""

    def __init__(self, source: io.RawIOBase, clock: Clock, most: int) -> None:
        self._source, self._clock = source, clock
        self._left = most
        self._arrived, self._waited = 0, 0.0

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any, /) -> int | None:
        before = self._clock()
        count = self._source.readinto(buffer)
        # More than the timeout is no waiting for the server: this process itself was stopped.
        self._waited += min(self._clock() - before, TIMEOUT)
        self._arrived += count or 0
        self._left -= count or 0
        if self._left < 0:
            raise UselessError("goes on sending, far beyond the length of the published file")
        if self._waited >= _MINUTE:
            if self._arrived < LEAST_RATE * self._waited:
                raise UselessError(
                    f"is too slow: {self._arrived} bytes in {self._waited:.0f} s, where {LEAST_RATE} a second are "
                    "the least to wait for"
                )
            self._arrived, self._waited = 0, 0.0
        return count

    def close(self) -> None:
        self._source.close()
        super().close()
