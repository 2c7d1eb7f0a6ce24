"""What a worker of a Ray cluster does: runs that train together, by the local executor, in a store of its own."""

import dataclasses
import itertools
import os
import platform
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from anchorhold.errors import AnchorholdError, DataError
from anchorhold_lab.data.locations import Datasets
from anchorhold_lab.experiments.on_ray.mailbox import Message
from anchorhold_lab.experiments.on_ray.parcel import Changes, Parcel
from anchorhold_lab.experiments.on_ray.workplace import workplace
from anchorhold_lab.experiments.running.events import CheckpointRejected, Event
from anchorhold_lab.experiments.running.executor import execute
from anchorhold_lab.experiments.running.step_counts import StepCounts
from anchorhold_lab.experiments.specs.source_files import load_content
from anchorhold_lab.experiments.specs.spec import Spec
from anchorhold_lab.experiments.store.store import Store


@dataclass(frozen=True)
class Work:
    """What all workers of one call share."""

    data_dir: str | os.PathLike[str] | None
    device: str
    threads: int
    side_by_side: int
    checkpoint_seconds: float


def check(
    specs: Sequence[Spec], data_dir: str | os.PathLike[str] | None, sources: Mapping[str, bytes]
) -> AnchorholdError | None:
    """Return what is wrong with the data on this node, or with settings that do not fit it; nothing has run yet.

    Args:
        specs: the runs.
        data_dir: the folder of data sets.
        sources: the files that they are made from, by digest.
    """
    counts = StepCounts(Datasets(data_dir))
    try:
        for digest, content in sources.items():
            load_content(content, Path(f"{digest}.py"))
        for spec in specs:
            counts.of(spec)
    except AnchorholdError as error:
        return _with_node(error)
    return None


def run_group(
    attempt: int, specs: Sequence[Spec], parcel: Parcel, work: Work, post: Callable[[Message], bool]
) -> AnchorholdError | None:
    """Make runs that train together, and send all that comes out.

    Args:
        attempt: which attempt this is, for the messages.
        specs: the runs whose results are still to be written.
        parcel: what the store has of them, and of those that began together with them.
        work: how to run them.
        post: delivers a message, and says whether there is a request to stop.

    Returns:
        Why everything has to end, if it has: data that is missing, or a disk that is full. A run that fails is none of
        these; its failure is sent, like a result.
    """
    torch.set_num_threads(work.threads)
    with workplace() as store:
        parcel.unpack(store)
        reporter = _Reporter(attempt, store, work.checkpoint_seconds, post)
        problem = None
        try:
            execute(
                specs,
                store,
                data_dir=work.data_dir,
                device=work.device,
                side_by_side=work.side_by_side,
                checkpoint_seconds=work.checkpoint_seconds,
                on_event=reporter.tell,
                stop=lambda: reporter.stopping,
                retry=True,  # those that are not to be tried again have not been sent here
            )
        except AnchorholdError as error:
            problem = _with_node(error)
        reporter.send(checkpoints=True)
    return problem


class _Reporter:
    """Sends events, and with them what has changed in the worker's store."""

    def __init__(self, attempt: int, store: Store, checkpoint_seconds: float, post: Callable[[Message], bool]) -> None:
        self.stopping = False
        self._attempt, self._store, self._post = attempt, store, post
        self._changes = Changes(store)
        self._numbers = itertools.count()
        self._checkpoint_seconds = checkpoint_seconds
        self._last_checkpoint = time.monotonic()

    def tell(self, event: Event) -> None:
        if isinstance(event, CheckpointRejected):  # where it lies in any store, this one being gone soon
            event = dataclasses.replace(event, kept=event.kept.relative_to(self._store.folder))
        # One after each task, as on a disk of one's own, could be too much for the network.
        self.send(event, checkpoints=time.monotonic() - self._last_checkpoint >= self._checkpoint_seconds)

    def send(self, event: Event | None = None, *, checkpoints: bool) -> None:
        parcel = self._changes.parcel(checkpoints=checkpoints)
        if parcel.has_checkpoint:
            self._last_checkpoint = time.monotonic()
        self.stopping |= self._post(Message(self._attempt, parcel, event, next(self._numbers)))


def _with_node(error: AnchorholdError) -> AnchorholdError:
    """Return an error that says where it happened."""
    node = platform.node()
    if isinstance(error, DataError):
        return DataError(
            f"{error} That was on node {node}: every node of the cluster needs the data, in the same folder."
        )
    return type(error)(f"{error} That was on node {node}.")
