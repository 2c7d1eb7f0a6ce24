"""Ctrl-C and SIGTERM: once to stop at the next safe moment, twice to stop at once."""

import signal
import threading
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
