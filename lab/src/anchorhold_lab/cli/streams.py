"""Output that always ends well: in any encoding, on a full disk, into a pipe that nobody reads, with nothing open.

Called once, by :func:`anchorhold_lab.cli.main`, before anything is printed or any file is opened.
"""

import codecs
import errno
import io
import os
import re
import sys
from typing import NoReturn, TextIO

_IN_ASCII = {
    "…": "...",
    "±": "+/-",
    "←": "<-",
    "→": "->",
    "√": "sqrt",
    "²": "^2",
    "₂": "_2",
    "·": "*",
    "×": "x",
    "‖": "||",
    "–": "-",
    "—": "-",
    "─": "-",
    "━": "-",
    "‘": "'",
    "’": "'",
    "Ω": "Omega",
    "ω": "omega",
    "θ": "theta",
    "α": "alpha",
    "β": "beta",
    "ξ": "xi",
    "δ": "delta",
    "Δ": "Delta",
    "é": "e",
}
"""How signs read where the terminal has none of them."""

_SENSIBLE_SIZE = "[1-9][0-9]{1,3}"

LOST = 1
"""The exit code where what was asked for could not be printed, which is that of a command that failed."""
UNREAD = 128 + 13
"""As if by SIGPIPE, which is how other programs end when nobody reads on."""


def prepare_streams() -> None:
    """Let stdout and stderr take any text, and whatever goes wrong with them end in a line and a code."""
    _fill_closed_places()
    _forget_absurd_sizes()
    sys.stdout = _rewrapped(_Results, sys.stdout, 1)
    sys.stderr = _rewrapped(_Messages, sys.stderr, 2)


def fits(text: str, stream: TextIO) -> bool:
    """Whether a stream can write a text as it is."""
    try:
        text.encode(getattr(stream, "encoding", None) or "utf-8")
    except UnicodeEncodeError:
        return False
    return True


class _Results(io.TextIOWrapper):
    """What was asked for: if it cannot be written, the command ends, since going on would look like success.

    It ends by ``SystemExit``, which is not taken for a failure of the run that was just being told about.
    """

    def write(self, text: str, /) -> int:
        try:
            return super().write(text)
        except OSError as error:
            self._give_up(error)

    def flush(self) -> None:
        try:
            super().flush()
        except OSError as error:
            self._give_up(error)

    def _give_up(self, error: OSError) -> NoReturn:
        # What is still in the buffer goes nowhere, or Python would try again at its end, and complain.
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, self.fileno())
        os.close(nowhere)
        if isinstance(error, BrokenPipeError):
            raise SystemExit(UNREAD) from None
        closed = error.errno == errno.EBADF
        reason = "it is closed" if closed else error.strerror or str(error)
        sys.stderr.write(
            f"error: stdout cannot be written: {reason}. What was asked for is not, or not all, printed; expected a "
            "terminal, a pipe or a file with room.\n"
        )
        raise SystemExit(LOST) from None


class _Messages(io.TextIOWrapper):
    """What is only for the eye: if it cannot be written, the command goes on without."""

    def write(self, text: str, /) -> int:
        try:
            return super().write(text)
        except OSError:
            return len(text)

    def flush(self) -> None:
        try:
            super().flush()
        except OSError:
            # What is still in the buffer goes nowhere, or it would be in the way of everything after it.
            nowhere = os.open(os.devnull, os.O_WRONLY)
            os.dup2(nowhere, self.fileno())
            os.close(nowhere)


def _fill_closed_places() -> None:
    """Open something in place of standard streams that are closed, or the next file would get their messages."""
    for number, mode in ((0, os.O_RDONLY), (1, os.O_RDONLY), (2, os.O_WRONLY)):
        try:
            os.fstat(number)
        except OSError:
            # The lowest free number is taken, and the lower ones are not free. Nothing can be written to stdout's.
            os.set_inheritable(os.open(os.devnull, mode), True)


def _forget_absurd_sizes() -> None:
    """Let a terminal have its own size where the environment names one in which no line can be read."""
    for name in ("COLUMNS", "LINES"):
        if name in os.environ and not re.fullmatch(_SENSIBLE_SIZE, os.environ[name]):
            del os.environ[name]


def _rewrapped(kind: type[io.TextIOWrapper], stream: TextIO | None, number: int) -> TextIO:
    encoding = getattr(stream, "encoding", None) or "utf-8"
    buffer = stream.buffer if stream is not None else io.BufferedWriter(io.FileIO(number, "w", closefd=False))
    made = kind(buffer, encoding=encoding, errors=_HANDLER, line_buffering=number == 2 or buffer.isatty())
    _KEPT.append(stream)  # when it goes, it closes the buffer
    return made


def _readable(error: UnicodeError) -> tuple[str, int]:
    """Return what stands in for signs that an encoding lacks, and for bytes of paths that are no text."""
    assert isinstance(error, UnicodeEncodeError)
    found = error.object[error.start : error.end]
    return "".join(_IN_ASCII.get(sign) or _escaped(sign) for sign in found), error.end


def _escaped(sign: str) -> str:
    byte = ord(sign) - 0xDC00  # as os.fsdecode writes a byte that is no UTF-8
    return f"\\x{byte:02x}" if 0x80 <= byte <= 0xFF else sign.encode("ascii", "backslashreplace").decode()


_KEPT: list[TextIO | None] = []
_HANDLER = "anchorhold-readable"
codecs.register_error(_HANDLER, _readable)
