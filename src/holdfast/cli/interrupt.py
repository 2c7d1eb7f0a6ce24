"""Ctrl-C: once to stop at the next safe moment, twice to stop at once."""

import signal
import threading
from types import FrameType
from typing import Any, Self


class Interruption:
    """Turns the first Ctrl-C into a request; ``requested`` says whether there was one.

    The second raises ``KeyboardInterrupt`` as usual, for those who cannot wait. The handler itself prints nothing: it
    may have interrupted someone who does.
    """

    def __init__(self) -> None:
        self.requested = threading.Event()
        self._noticed = False
        self._before: Any = None

    def __enter__(self) -> Self:
        self._before = signal.signal(signal.SIGINT, self._handle)
        return self

    def __exit__(self, *_: object) -> None:
        signal.signal(signal.SIGINT, self._before)

    def is_new(self) -> bool:
        """Whether there is a request that nobody has asked about before."""
        fresh = self.requested.is_set() and not self._noticed
        self._noticed |= fresh
        return fresh

    def _handle(self, number: int, frame: FrameType | None) -> None:
        if self.requested.is_set():
            raise KeyboardInterrupt
        self.requested.set()
