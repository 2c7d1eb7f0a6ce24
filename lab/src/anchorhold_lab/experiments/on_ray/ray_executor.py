"""The executor for Ray: spreads runs over a cluster, and brings what comes out into one store.

The store stays with the process that calls :func:`execute_on_ray`, and no other machine needs to see it. That process
holds the claims, so that it shares the store with other processes as the local executor does. What the store has of the
runs of a task travels to a worker, which makes them in a store of its own, and everything new there travels back:
results and failures at once, checkpoints every two minutes and at the end.
"""

import contextlib
import dataclasses
import functools
import os
import threading
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from datetime import UTC, datetime
from itertools import count
from pathlib import Path
from typing import Any

import torch

from anchorhold.errors import AnchorholdError, ClusterError, ConfigurationError
from anchorhold_lab.experiments.on_ray.connection import cluster_errors, connected, ray
from anchorhold_lab.experiments.on_ray.mailbox import Message, empty_mailbox, post
from anchorhold_lab.experiments.on_ray.parcel import Parcel, pack
from anchorhold_lab.experiments.on_ray.worker import Work, check, run_group
from anchorhold_lab.experiments.running.bookkeeping import Bookkeeping, Summary
from anchorhold_lab.experiments.running.events import CheckpointRejected, Event, RunFailed, RunFinished, RunSkipped
from anchorhold_lab.experiments.running.executor import USUAL_SIDE_BY_SIDE, distinct
from anchorhold_lab.experiments.running.grouping import Group, plan
from anchorhold_lab.experiments.running.sources_at_hand import keep_sources
from anchorhold_lab.experiments.specs.spec import Spec
from anchorhold_lab.experiments.store.provenance import source_commit, versions
from anchorhold_lab.experiments.store.run_results import Failure
from anchorhold_lab.experiments.store.store import RunClaim, Store, as_store

_CPUS = 1
"""Of a task, and its threads; a GPU's task has this many beside the GPU."""
_DEATHS = 4
"""How many workers may die over the same runs, one after another and without a new checkpoint; of mailboxes, how many
without a message."""
_LOOK_EVERY = 0.2
"""Seconds between looks at the mailbox while nothing ends."""
_LAST_WORDS = 2.0
"""Seconds that tasks have to end by themselves before they are ended by force."""
_ATTEMPTS = count()
"""Numbers for them, of which this process uses each once."""


def execute_on_ray(
    specs: Spec | Iterable[Spec],
    store: Store | str | os.PathLike[str],
    *,
    address: str | None = None,
    data_dir: str | os.PathLike[str] | None = None,
    device: torch.device | str | None = None,
    side_by_side: int | None = None,
    checkpoint_seconds: float = 120.0,
    on_event: Callable[[Event], None] | None = None,
    stop: Callable[[], bool] | threading.Event | None = None,
    retry: bool = False,
) -> Summary:
    """Make all runs whose results the store lacks, on a Ray cluster.

    Does what :func:`~anchorhold_lab.experiments.execute` does, with equal results. A worker that dies costs a new
    attempt from the last checkpoint that it sent; runs over which four die in a row are written down as failed. A
    cluster that ends as a whole is a :class:`~anchorhold.errors.ClusterError`.

    Args:
        specs: the runs, or one of them.
        store: where results go, or its folder, on this machine.
        address: a cluster's ``HOST:PORT``, or ``auto`` for the one that this machine is part of; ``$RAY_ADDRESS`` if
            left out, and without that a Ray on this machine alone. A program that is connected to Ray already stays so.
        data_dir: the folder of data sets, which is on every node; ``$ANCHORHOLD_DATA`` here, else each node's own usual
            one.
        device: ``"cuda"``, one GPU for each task, or ``"cpu"``, one core for each; GPUs by default, if there are any.
        side_by_side: how many runs that differ in seed and strength alone train together in a task; on GPUs, up to 10
            by default, and no more than keep all of them busy.
        checkpoint_seconds: how often a worker sends a checkpoint.
        on_event: is told of everything that happens.
        stop: an event, or a function that says whether to stop; asked about five times a second. Workers send a
            checkpoint.
        retry: whether to try runs again that have failed before.
    """
    chosen = None if device is None else str(device)
    if chosen not in (None, "cpu", "cuda"):
        raise ConfigurationError(f"device={chosen!r}: Ray says which GPU a task has; expected 'cuda' or 'cpu'.")
    if (side_by_side is not None and side_by_side < 1) or not checkpoint_seconds >= 0:
        raise ConfigurationError(
            f"side_by_side={side_by_side} and checkpoint_seconds={checkpoint_seconds}: expected 1 or more, 0 or more."
        )
    books = Bookkeeping(as_store(store), on_event, stop)
    left = [spec for spec in distinct(specs) if books.is_to_run(spec, retry=retry)]
    if not left or books.should_stop():
        return books.summary
    with connected(address), cluster_errors():
        chosen = chosen or ("cuda" if _slots("cuda") else "cpu")
        slots = _slots(chosen)
        if not slots:
            raise ConfigurationError(
                f"device={chosen!r}, of which the Ray cluster has none; it has {_resources()}. Add a node that has "
                "one, or take the other device."
            )
        usual = min(USUAL_SIDE_BY_SIDE, -(-len(left) // slots)) if chosen == "cuda" else 1
        work = Work(_everywhere(data_dir), chosen, _CPUS, side_by_side or usual, checkpoint_seconds)
        return _Spreader(books, work).execute(left)


@dataclass
class _Task:
    """Runs that a worker is at, or will be."""

    members: Sequence[Spec]
    open: dict[str, RunClaim]
    """The claims of those that have neither a result nor a failure yet, by id."""
    claims: ExitStack
    deaths: int = 0
    attempt: int = field(default=-1)
    heard: bool = False
    """Whether this attempt's worker has said anything."""


class _Spreader:
    def __init__(self, books: Bookkeeping, work: Work) -> None:
        self.books, self.store, self.work = books, books.store, work
        self.mailbox = empty_mailbox()
        self.mailboxes_lost = 0
        # Ray's own retries would begin with what was sent first, not with the last checkpoint.
        gpus = int(work.device == "cuda")
        self.remote: Any = ray.remote(num_cpus=_CPUS, num_gpus=gpus, max_retries=0)(_run_and_post)
        self.under_way: dict[Any, _Task] = {}
        self.problem: Exception | None = None
        self.asked_to_stop = False

    def execute(self, specs: list[Spec]) -> Summary:
        try:
            sources = keep_sources(specs, self.store)
            problem = ray.get(ray.remote(num_cpus=0)(check).remote(specs, self.work.data_dir, sources))
            if problem is not None:
                raise problem
            self.store.tidy_groups()
            # Runs that another process has are asked for again at the end, in case that it was killed.
            for _ in range(2):
                specs = self._spread(plan(specs, self.store, self.work.side_by_side, self.books.complain))
        finally:
            self._abandon()
        if self.problem is not None:
            raise self.problem
        for spec in specs:
            self.books.tell(RunSkipped(spec, "being run by another process"))
        self.store.tidy_groups()
        return self.books.summary

    def _spread(self, groups: Iterable[Group]) -> list[Spec]:
        """Run what nobody else runs, and return the rest."""
        waiting = deque(groups)
        busy: list[Spec] = []
        while waiting or self.under_way:
            if self._should_stop():
                waiting.clear()
            # Twice as many as there is room for: no node waits for work, and a cluster that can grow knows that it
            # should. Claims of many more would keep other processes from them.
            while waiting and len(self.under_way) < 2 * max(1, _slots(self.work.device)):
                busy += self._begin(waiting.popleft())
            if self.under_way:
                self._look()
        return busy

    def _begin(self, group: Group) -> list[Spec]:
        held = ExitStack()
        claims, busy = held.enter_context(self.books.claimed(group.wanted))
        if not claims:
            held.close()
            return busy
        complete = len(claims) == len(group.wanted)
        members = group.members if complete else [claim.spec for claim in claims.values()]
        self._submit(_Task(members, dict(claims), held))
        return busy

    def _submit(self, task: _Task) -> None:
        task.attempt, task.heard = next(_ATTEMPTS), False
        specs = [claim.spec for claim in task.open.values()]
        try:
            parcel = pack(self.store, task.members)
            ref = self.remote.remote(task.attempt, specs, parcel, self.work, self.mailbox)
        except BaseException:
            task.claims.close()
            raise
        self.under_way[ref] = task

    def _look(self) -> None:
        """Take in what workers have sent, and who has ended."""
        ended, _ = ray.wait(list(self.under_way), timeout=_LOOK_EVERY)
        tasks = {task.attempt: task for task in self.under_way.values()}
        try:
            # A worker that has ended has sent all it had before.
            messages = ray.get(self.mailbox.take.remote())
        except ray.exceptions.RayActorError as error:
            self._replace_mailbox(error)
            return
        for message in messages:
            if message.attempt in tasks:
                self._receive(message, tasks[message.attempt])
        for ref in ended:
            self._end(ref, self.under_way.pop(ref))

    def _receive(self, message: Message, task: _Task) -> None:
        task.heard = True
        self.mailboxes_lost = 0
        message.parcel.unpack(self.store)
        if message.parcel.has_checkpoint:
            task.deaths = 0
        event = message.event
        if isinstance(event, RunFinished):
            task.open.pop(event.result.spec.id, None)
        elif isinstance(event, RunFailed):
            task.open.pop(event.spec.id, None)
        elif isinstance(event, CheckpointRejected):
            event = dataclasses.replace(event, kept=self.store.folder / event.kept)
        if event is not None:
            self.books.tell(event)

    def _end(self, ref: Any, task: _Task) -> None:
        try:
            problem: Exception | None = ray.get(ref)
        except ray.exceptions.TaskCancelledError as error:  # also of one that had begun, and had not said so yet
            problem = ClusterError(str(error))
        except ray.exceptions.RayTaskError as error:  # a bug: it ends everything, as it does without Ray
            problem = error
        except ray.exceptions.RayError as error:
            problem = ClusterError(str(error))
        if isinstance(problem, ClusterError):
            if self._try_again(task, problem):
                return
            problem = None
        self.problem = self.problem or problem
        self._close(task)

    def _close(self, task: _Task) -> None:
        task.claims.close()
        for spec in task.members:
            if self.store.status(spec.id) == "finished":
                self.store.tidy(spec)

    def _try_again(self, task: _Task, error: Exception) -> bool:
        """Give the runs of a worker that died to another one, unless they are what it died of."""
        if not task.open or self._should_stop():
            return False
        task.deaths += 1
        if task.deaths < _DEATHS:
            self._submit(task)
            return True
        why = " ".join(str(error).split())
        reason = (
            f"{task.deaths} workers died over it, one after another: {why} If they ran out of memory, take a smaller "
            "batch_size, narrower hidden layers, or nodes with more of it."
        )
        failed_at = datetime.now(UTC).isoformat(timespec="microseconds")
        for claim in task.open.values():
            claim.fail(Failure(reason, failed_at, self.work.device, source_commit(), versions()))
            self.books.tell(RunFailed(claim.spec, reason))
        return False

    def _replace_mailbox(self, error: Exception) -> None:
        """Go on with a new mailbox after the last one died, from what had arrived: the rest died with it."""
        self.mailboxes_lost += 1
        if self.mailboxes_lost == _DEATHS:
            raise error
        self.mailbox = empty_mailbox()
        _end_all(self.under_way)
        for ref in list(self.under_way):
            task = self.under_way.pop(ref)
            if task.open and not self._should_stop():
                self._submit(task)
            else:
                self._close(task)

    def _should_stop(self) -> bool:
        """Whether to stop; what has not begun yet is called off, and the others are asked to save."""
        if self.problem is None and not self.books.should_stop():
            return False
        if not self.asked_to_stop:
            self.asked_to_stop = True
            with contextlib.suppress(ray.exceptions.RayActorError):  # noticed, too, when its messages are taken
                ray.get(self.mailbox.ask_to_stop.remote())
            for ref, task in self.under_way.items():
                if not task.heard:
                    ray.cancel(ref)
        return True

    def _abandon(self) -> None:
        """Leave nothing behind on the cluster."""
        _end_all(self.under_way)
        for task in self.under_way.values():
            task.claims.close()


def _end_all(refs: Iterable[Any]) -> None:
    """End tasks, by force where they do not end by themselves in a moment.

    One that ends, its mailbox having died, just when it is cancelled by force would take this process with it: Ray
    aborts over a task that is completed twice.
    """
    running = list(refs)
    if running:
        _, running = ray.wait(running, num_returns=len(running), timeout=_LAST_WORDS)
    for ref in running:
        ray.cancel(ref, force=True)


def _run_and_post(
    attempt: int, specs: Sequence[Spec], parcel: Parcel, work: Work, mailbox: Any
) -> AnchorholdError | None:
    try:
        return run_group(attempt, specs, parcel, work, functools.partial(post, mailbox))
    except ray.exceptions.RayActorError as error:  # returned, since Ray prints what is raised and not asked for
        return ClusterError(str(error))


def _slots(device: str) -> int:
    """Return how many tasks the cluster has room for now."""
    resources = _resources()
    return int(resources.get("GPU", 0) if device == "cuda" else resources.get("CPU", 0) / _CPUS)


def _resources() -> dict[str, float]:
    found: dict[str, float] = ray.cluster_resources()  # type: ignore[no-untyped-call]
    return {kind: amount for kind, amount in found.items() if kind in ("CPU", "GPU")}


def _everywhere(data_dir: str | os.PathLike[str] | None) -> str | None:
    """Return a folder as other nodes know it, where this process has one in mind."""
    given = data_dir or os.environ.get("ANCHORHOLD_DATA")
    return str(Path(given).expanduser().absolute()) if given else None
