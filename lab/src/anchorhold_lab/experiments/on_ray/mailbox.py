"""What workers and the process that waits for them tell each other."""

import contextlib
import functools
from dataclasses import dataclass
from typing import Any

from anchorhold_lab.experiments.on_ray.connection import ray
from anchorhold_lab.experiments.on_ray.parcel import Parcel
from anchorhold_lab.experiments.running.events import Event

_TRIES = 4
"""How often a message is brought to a mailbox that Ray cannot reach for a moment."""
_START_SECONDS = 120
"""How long a mailbox may take to answer. One that Ray cannot start any more would be waited for without end."""


@dataclass(frozen=True)
class Message:
    """What a worker has to tell."""

    attempt: int
    """Whose it is: one that was given up may still speak, and nobody listens."""
    parcel: Parcel
    """What is new in the worker's store; what the event tells of is among it."""
    event: Event | None = None
    number: int = 0
    """Of the attempt's messages, by which one that is brought again is known."""


class Mailbox:
    """An actor beside the process that waits: workers bring messages, and hear whether to stop."""

    def __init__(self) -> None:
        self._messages: list[Message] = []
        self._latest: dict[int, int] = {}
        """The last message of each attempt, by its number."""
        self._stopping = False

    def post(self, message: Message) -> bool:
        """Leave a message, unless it is there; return whether there was a request to stop."""
        if message.number > self._latest.get(message.attempt, -1):
            self._messages.append(message)
            self._latest[message.attempt] = message.number
        return self._stopping

    def take(self) -> list[Message]:
        """Return all messages since the last call, in their order."""
        taken, self._messages = self._messages, []
        return taken

    def clear(self) -> None:
        """Be as new."""
        self._messages, self._latest, self._stopping = [], {}, False

    def ask_to_stop(self) -> None:
        """Let workers hear that they should save and stop."""
        self._stopping = True


def post(mailbox: Any, message: Message) -> bool:
    """Bring a message to a mailbox; return whether there was a request to stop.

    One that Ray cannot reach for a moment may have the message or not, so it is brought again.
    """
    for _ in range(_TRIES - 1):
        with contextlib.suppress(ray.exceptions.ActorUnavailableError):
            return bool(ray.get(mailbox.post.remote(message)))
    return bool(ray.get(mailbox.post.remote(message)))


def empty_mailbox() -> Any:
    """Return the mailbox of this process's connection to Ray, as new: another one only if the last has died."""
    context = ray.get_runtime_context()
    try:
        return _cleared(_of_connection(context.get_worker_id()))
    except ray.exceptions.RayActorError:
        nodes: list[dict[str, Any]] = ray.nodes()  # type: ignore[no-untyped-call]
        if not any(node["NodeID"] == context.get_node_id() and node["Alive"] for node in nodes):
            raise  # the node died with it, and another one would be waited for in vain
        _of_connection.cache_clear()
        return _cleared(_of_connection(context.get_worker_id()))


@functools.lru_cache(maxsize=1)
def _of_connection(connection: str) -> Any:
    """Make one for a connection, and remember it, since it takes seconds to start."""
    del connection
    # On this machine, so that the two live and die together.
    node = ray.get_runtime_context().get_node_id()
    here = ray.util.scheduling_strategies.NodeAffinitySchedulingStrategy(node, soft=False)
    return ray.remote(Mailbox).options(num_cpus=0, scheduling_strategy=here).remote()


def _cleared(mailbox: Any) -> Any:
    ray.get(mailbox.clear.remote(), timeout=_START_SECONDS)
    return mailbox
