"""The local executor: runs specs one after another, or side by side, into a store."""

import os
import threading
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

import torch

from holdfast.errors import ConfigurationError, DataError, HoldfastError, StoreError
from holdfast.experiments.datasets import Datasets
from holdfast.experiments.events import Event, RunFailed, RunFinished, RunSkipped
from holdfast.experiments.grouping import Group, plan
from holdfast.experiments.job import Job, Surroundings
from holdfast.experiments.results import Result
from holdfast.experiments.scenarios import scenario_kind
from holdfast.experiments.spec import Spec
from holdfast.experiments.steps import StepCounts
from holdfast.experiments.store import Claim, Store, as_store

USUAL_SIDE_BY_SIDE = 8
"""How many runs train together on a GPU; on a CPU they would only wait for each other."""


@dataclass
class Summary:
    """What became of the specs that were given."""

    finished: list[Result] = field(default_factory=list)
    failed: list[RunFailed] = field(default_factory=list)
    skipped: list[RunSkipped] = field(default_factory=list)
    interrupted: bool = False
    """Whether there was a request to stop; what was under way goes on from its checkpoint next time."""


def execute(
    specs: Spec | Iterable[Spec],
    store: Store | str | os.PathLike[str],
    *,
    data_dir: str | os.PathLike[str] | None = None,
    device: torch.device | str | None = None,
    side_by_side: int | None = None,
    checkpoint_seconds: float = 120.0,
    on_event: Callable[[Event], None] | None = None,
    stop: Callable[[], bool] | threading.Event | None = None,
    retry: bool = False,
) -> Summary:
    """Make all runs whose results the store lacks.

    A run that was killed goes on from its last checkpoint. Several processes may do this with one store at the same
    time: each run is made once. A run that diverges or runs out of memory is written down as failed, and the others
    go on; a store that cannot be written ends everything with a :class:`~holdfast.errors.StoreError`.

    Args:
        specs: the runs, or one of them.
        store: where results go, or its folder.
        data_dir: the folder of data sets, as in :func:`holdfast.data.load`.
        device: what to train on; a GPU by default, if there is one.
        side_by_side: how many runs that differ in seed and strength alone train together; 8 on a GPU by default. Those
            that were begun together go on together, whatever the number.
        checkpoint_seconds: how often to write a checkpoint within a task; there is one after each task in any case.
        on_event: is told of everything that happens.
        stop: an event, or a function that says whether to stop; asked about once a second. A checkpoint is written.
        retry: whether to try runs again that have failed before.
    """
    chosen = torch.device(device or ("cuda" if torch.cuda.is_available() else "cpu"))
    together = side_by_side or (USUAL_SIDE_BY_SIDE if chosen.type == "cuda" else 1)
    if together < 1 or not checkpoint_seconds >= 0:
        raise ConfigurationError(
            f"side_by_side={side_by_side} and checkpoint_seconds={checkpoint_seconds}: expected 1 or more, 0 or more."
        )
    asked = stop.is_set if isinstance(stop, threading.Event) else stop
    executor = _Executor(as_store(store), Datasets(data_dir), chosen, checkpoint_seconds, on_event, asked)
    wanted = [specs] if isinstance(specs, Spec) else specs
    return executor.execute(list({spec.id: spec for spec in wanted}.values()), together, retry=retry)


class _Executor:
    def __init__(
        self,
        store: Store,
        datasets: Datasets,
        device: torch.device,
        checkpoint_seconds: float,
        on_event: Callable[[Event], None] | None,
        stop: Callable[[], bool] | None,
    ) -> None:
        self.store = store
        self.datasets = datasets
        self.summary = Summary()
        self.on_event = on_event
        self.stop = stop
        self.counts = StepCounts(datasets)
        self.around = Surroundings(
            store, datasets, device, checkpoint_seconds, self.counts.of, self._tell, self._should_stop
        )

    def execute(self, specs: Sequence[Spec], together: int, *, retry: bool) -> Summary:
        left = [spec for spec in specs if self._is_to_run(spec, retry=retry)]
        for name in {name for spec in left for name in scenario_kind(spec.scenario).datasets}:
            _ = self.datasets[name]  # one that is missing is noticed before anything runs,
        for spec in left:
            self.counts.of(spec)  # and so are settings that do not fit
        self.store.tidy_groups()
        # Runs that another process has are asked for again at the end, in case that it was killed.
        for _ in range(2):
            busy: list[Spec] = []
            for group in plan(left, self.store, together):
                if not self._should_stop():
                    busy += self._run_group(group)
            left = busy
        for spec in left:
            self._tell(RunSkipped(spec, "being run by another process"))
        self.store.tidy_groups()
        return self.summary

    def _is_to_run(self, spec: Spec, *, retry: bool) -> bool:
        status = self.store.status(spec.id)
        if status == "finished":
            self.store.tidy(spec)
            self._tell(RunSkipped(spec, "finished already"))
        elif status == "failed" and not retry:
            self._tell(RunSkipped(spec, "failed before", self.store.failures(spec.id)[-1].reason))
        else:
            return True
        return False

    def _run_group(self, group: Group) -> list[Spec]:
        """Run what nobody else runs, and return the rest."""
        claims: dict[str, Claim] = {}
        busy = []
        try:
            for spec in group.wanted:
                claim = self.store.claim(spec)
                if claim is None:
                    busy.append(spec)
                    continue
                claims[spec.id] = claim
                # It may have finished between the look at the store and the claim.
                if self.store.status(spec.id) == "finished":
                    claims.pop(spec.id).release()
                    self._tell(RunSkipped(spec, "finished already"))
            complete = len(claims) == len(group.wanted)
            self._run_claimed(group.members if complete else [claim.spec for claim in claims.values()], claims)
        finally:
            for claim in claims.values():
                claim.release()
        return busy

    def _run_claimed(self, members: Sequence[Spec], claims: dict[str, Claim]) -> None:
        """Run them together; where that fails, in halves, so that one run's trouble stays its own."""
        if not claims:
            return
        job = Job(members, claims, self.around)
        reason = self._attempt(job)
        if reason is None:
            return
        if self.around.device.type == "cuda":
            torch.cuda.empty_cache()
        left = job.unfinished
        if len(left) == 1:
            job.record_failure(reason)
            return
        job.discard_checkpoints()
        for half in (left[: len(left) // 2], left[len(left) // 2 :]):
            if not self._should_stop():
                self._run_claimed([claim.spec for claim in half], {claim.spec.id: claim for claim in half})

    def _attempt(self, job: Job) -> str | None:
        """Return why a job failed, if it did. What failed is forgotten before anything else is tried."""
        try:
            if not job.run():
                self.summary.interrupted = True
        except (StoreError, DataError):
            raise
        except HoldfastError as error:
            return str(error)
        except (MemoryError, RuntimeError) as error:
            if not _is_out_of_memory(error):
                raise
            return (
                f"Out of memory: {str(error).strip() or 'no more could be had'}. Take a smaller batch_size, narrower "
                "hidden layers, fewer runs side by side, or a device with more memory."
            )
        return None

    def _should_stop(self) -> bool:
        if self.stop is not None and self.stop():
            self.summary.interrupted = True
        return self.summary.interrupted

    def _tell(self, event: Event) -> None:
        match event:
            case RunFinished(result):
                self.summary.finished.append(result)
            case RunFailed():
                self.summary.failed.append(event)
            case RunSkipped():
                self.summary.skipped.append(event)
        if self.on_event is not None:
            self.on_event(event)


def _is_out_of_memory(error: Exception) -> bool:
    """Tell running out of memory from other errors; on a CPU, torch says so in words alone."""
    if isinstance(error, MemoryError | torch.OutOfMemoryError):
        return True
    return any(words in str(error) for words in ("can't allocate memory", "not enough memory"))
