"""Processes that are killed at, or fail with, the n-th call that touches a folder; forked, so that each starts at once.

Called by ``kills``. The calls are counted in C (``file_faults.c``), which has to be there before Python starts: a
program that uses this begins with :func:`with_faults`, which starts it anew with the library in place.
"""

import ctypes
import os
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from anchorhold.errors import AnchorholdError

_HERE = Path(__file__).parent
_LIBRARY = "ANCHORHOLD_FILE_FAULTS"


class Ended(NamedTuple):
    """How a child ended."""

    how: str
    """``"done"``, ``"refused"`` by the library's own error, ``"killed"``, ``"HUNG"`` or ``"TRACEBACK"``."""
    said: str = ""
    calls: int = 0
    """How many calls touched the folder."""


def with_faults() -> None:
    """Start this program anew with calls counted, unless they are already."""
    if _LIBRARY in os.environ:
        return
    library = Path(tempfile.mkdtemp(prefix="anchorhold-torture-")) / "file_faults.so"
    compiler = os.environ.get("CC", "cc")
    making = [compiler, "-shared", "-fPIC", "-O1", "-o", library, _HERE / "file_faults.c", "-ldl"]
    subprocess.run(making, check=True)  # noqa: S603 (with the user's own compiler)
    found = dict(os.environ) | {"LD_PRELOAD": str(library), _LIBRARY: str(library)}
    os.execve(sys.executable, [sys.executable, *sys.orig_argv[1:]], found)  # noqa: S606 (itself)


def child(
    work: Callable[[], object],
    folder: Path,
    call: int = -1,
    error: int = 0,
    *,
    after: float | None = None,
    refusals: tuple[type[BaseException], ...] = (AnchorholdError,),
) -> Ended:
    """Run some work in a process of its own, whose chosen call in a folder fails or is its last.

    Args:
        work: what is done.
        folder: whose calls count.
        call: which one is chosen, counted from 0; none by default.
        error: what it fails with; 0 kills the process there.
        after: seconds after which the process is killed, wherever it is.
        refusals: what it may raise.
    """
    reading, writing = os.pipe()
    process = os.fork()
    if process == 0:
        os.close(reading)
        _run(work, folder, call, error, writing, refusals)
    os.close(writing)
    how = _waited_for(process, after)
    with os.fdopen(reading, "r", encoding="utf-8", errors="replace") as told:
        answer, _, rest = told.read().partition("\n")
    if how is not None:
        return Ended(how)
    calls, _, said = rest.partition("\n")
    return Ended(answer or "TRACEBACK", said, int(calls or 0))


def _run(
    work: Callable[[], object],
    folder: Path,
    call: int,
    error: int,
    told: int,
    refusals: tuple[type[BaseException], ...],
) -> None:
    """Do the work, tell how it ended, and leave without the parent's own endings."""
    shim = ctypes.CDLL(None)
    answer, said = "done", ""
    try:
        with open(os.devnull, "w", encoding="utf-8") as nowhere:  # noqa: PTH123
            os.dup2(nowhere.fileno(), 1)
            os.dup2(nowhere.fileno(), 2)
        shim.torture_arm(os.fsencode(folder), ctypes.c_long(call), error)
        work()
    except refusals as refusal:
        answer, said = "refused", str(refusal)
    except BaseException:  # noqa: BLE001 (whatever it is, it should have been one of the library's own)
        answer, said = "TRACEBACK", traceback.format_exc(limit=-3)
    calls = shim.torture_seen()
    os.write(told, f"{answer}\n{calls}\n{said}".encode(errors="replace"))
    os._exit(0)


def _waited_for(process: int, after: float | None, most: float = 120.0) -> str | None:
    """Wait for a child, kill it when its time is over, and return how it ended if it could not tell."""
    begun = time.monotonic()
    limit = most if after is None else after
    while True:
        ended, status = os.waitpid(process, os.WNOHANG)
        if ended:
            if not os.WIFSIGNALED(status):
                return None
            return "killed" if os.WTERMSIG(status) == signal.SIGKILL else "TRACEBACK"
        if time.monotonic() - begun > limit:
            os.kill(process, signal.SIGKILL)
            os.waitpid(process, 0)
            return "HUNG" if after is None else "killed"
        time.sleep(0.001)
