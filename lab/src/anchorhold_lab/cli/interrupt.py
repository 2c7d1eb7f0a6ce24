"""Ctrl-C and SIGTERM: once to stop at the next safe moment, twice, or while modules load, to stop at once."""

import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from types import FrameType
from typing import Any, ClassVar, Self

_SIGNALS = (signal.SIGINT, signal.SIGTERM)


class Interruption:
    """Turns the first signal into a request; ``requested`` says whether there was one.

    The second raises ``KeyboardInterrupt`` as usual, for those who cannot wait. The handler itself prints nothing: it
    may have interrupted someone who does.
    """

    last_signal: ClassVar[int | None] = None
    """The last one that came, since signals are the whole process's: the exit code tells which it was."""
    is_told: ClassVar[bool] = False
    """Whether the command has said that it was stopped: a Ctrl-C that comes while it ends says it no second time."""

    def __init__(self) -> None:
        self.requested = threading.Event()
        self._noticed = False
        self._before: dict[signal.Signals, Any] = {}

    def __enter__(self) -> Self:
        Interruption.last_signal = None
        self._before = {number: signal.signal(number, self._handle) for number in _SIGNALS}
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def is_new(self) -> bool:
        """Whether there is a request that nobody has asked about before."""
        fresh = self.requested.is_set() and not self._noticed
        self._noticed |= fresh
        return fresh

    def _handle(self, number: int, frame: FrameType | None) -> None:
        Interruption.last_signal = number
        if self.requested.is_set():
            raise KeyboardInterrupt
        self.requested.set()


def leave_at_once(*_: object) -> None:
    """End the process, as the handler of a Ctrl-C."""
    if Interruption.is_told:
        return
    with suppress(OSError):
        os.write(2, b"Interrupted.\n")
    os._exit(130)


@contextmanager
def loading() -> Iterator[None]:
    """Let Ctrl-C end the process at once while modules are imported.

    Nothing has begun that could be lost, and an exception in the middle of an extension's import may end as anything:
    another exception, a module that is half there, an abort.
    """
    with _handled_by(leave_at_once):
        yield


@contextmanager
def working() -> Iterator[None]:
    """Let Ctrl-C raise ``KeyboardInterrupt``, so that what is under way is put away."""
    Interruption.is_told = False
    with _handled_by(_raise_unless_told):
        yield


def _raise_unless_told(number: int, frame: FrameType | None) -> None:
    if not Interruption.is_told:
        signal.default_int_handler(number, frame)


@contextmanager
def _handled_by(handler: Callable[[int, FrameType | None], Any]) -> Iterator[None]:
    before = signal.getsignal(signal.SIGINT)
    # Only the main thread may set handlers; and whoever started this with Ctrl-C ignored meant it.
    if threading.current_thread() is not threading.main_thread() or before == signal.SIG_IGN:
        yield
        return
    signal.signal(signal.SIGINT, handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
