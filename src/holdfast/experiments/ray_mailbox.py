"""What workers and the process that waits for them tell each other."""

from dataclasses import dataclass

from holdfast.experiments.events import Event
from holdfast.experiments.ray_parcel import Parcel


@dataclass(frozen=True)
class Message:
    """What a worker has to tell."""

    attempt: int
    """Whose it is: one that was given up may still speak, and nobody listens."""
    parcel: Parcel
    """What is new in the worker's store; what the event tells of is among it."""
    event: Event | None = None


class Mailbox:
    """An actor beside the process that waits: workers bring messages, and hear whether to stop."""

    def __init__(self) -> None:
        self._messages: list[Message] = []
        self._stopping = False

    def post(self, message: Message) -> bool:
        """Leave a message; return whether there was a request to stop."""
        self._messages.append(message)
        return self._stopping

    def take(self) -> list[Message]:
        """Return all messages since the last call, in their order."""
        taken, self._messages = self._messages, []
        return taken

    def clear(self) -> None:
        """Be as new."""
        self._messages, self._stopping = [], False

    def ask_to_stop(self) -> None:
        """Let workers hear that they should save and stop."""
        self._stopping = True
