"""Those who are told how runs go on."""

from abc import ABC, abstractmethod
from typing import Self

from anchorhold_lab.experiments import Event


class Listener(ABC):
    """Is called with every event; used in a ``with`` block, at whose end it puts away what it holds."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @abstractmethod
    def __call__(self, event: Event) -> None:
        """Take in an event."""

    def close(self) -> None:  # noqa: B027 (most hold nothing)
        """Put away what it holds."""


class Display(Listener):
    """A listener that shows what it is told."""

    @abstractmethod
    def stopping(self) -> None:
        """Say that the runs stop at the next safe moment."""
