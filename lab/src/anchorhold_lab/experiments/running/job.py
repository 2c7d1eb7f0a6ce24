"""Runs that train together, from the engine's start to their results."""

import copy
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime

import torch

from anchorhold_lab.data import Dataset
from anchorhold_lab.experiments.running.engines import start_engine
from anchorhold_lab.experiments.running.events import (
    CheckpointRejected,
    Event,
    RunFailed,
    RunFinished,
    RunProgress,
    RunStarted,
)
from anchorhold_lab.experiments.specs.spec import Spec
from anchorhold_lab.experiments.store.checkpoints import Checkpoint, Checkpoints
from anchorhold_lab.experiments.store.nested_files import Flattened
from anchorhold_lab.experiments.store.provenance import device_name, source_commit, versions
from anchorhold_lab.experiments.store.run_results import Failure, Result
from anchorhold_lab.experiments.store.store import RunClaim, Store, writing
from anchorhold_lab.training.telling.progress import Engine, Outcome


@dataclass(frozen=True)
class Surroundings:
    """What all jobs of one call share."""

    store: Store
    datasets: Mapping[str, Dataset]
    device: torch.device
    checkpoint_seconds: float
    steps_of: Callable[[Spec], int]
    tell: Callable[[Event], None]
    should_stop: Callable[[], bool]


@dataclass
class _Clock:
    """How long these runs have taken, over all processes that worked on them."""

    training: float = 0.0
    before: float = 0.0
    """The total of earlier processes."""
    started: float = field(default_factory=time.perf_counter)

    @property
    def total(self) -> float:
        return self.before + time.perf_counter() - self.started


class Job:
    """One engine at work.

    Args:
        members: the runs, in the order in which the engine has them.
        claims: the claims of those whose results are to be written, by id.
        around: store, data, device and listeners.
    """

    def __init__(self, members: Sequence[Spec], claims: Mapping[str, RunClaim], around: Surroundings) -> None:
        self.members = tuple(members)
        self.around = around
        ids = [spec.id for spec in self.members]
        folder = around.store.checkpoint_folder(ids)
        self.checkpoints = Checkpoints(folder, ids, around.device)
        self._unfinished = dict(claims)
        self._clock = _Clock()
        self._written = 0
        self._resumed = 0
        self._last_write = time.monotonic()

    def run(self) -> bool:
        """Learn until all results are written, or until asked to stop: return whether there was nothing left to do."""
        try:
            return self._run()
        finally:
            self.checkpoints.close()  # before the claims are released, and others may write there

    @property
    def unfinished(self) -> list[RunClaim]:
        """The claims of those that have neither a result nor a failure yet."""
        return list(self._unfinished.values())

    def record_failure(self, reason: str) -> None:
        """Write down why the runs that are left cannot go on."""
        for run in list(self._unfinished):
            self._fail(run, reason)

    def discard_checkpoints(self) -> None:
        """Remove the checkpoints, so that these runs begin anew or are over."""
        with writing(self.checkpoints.folder):
            self.checkpoints.discard()

    def _run(self) -> bool:
        engine = self._begin()
        learning = engine.learn()
        while self._unfinished:
            before = time.perf_counter()
            progress = next(learning, None)
            self._clock.training += time.perf_counter() - before
            if progress is None:
                break
            self._record_failures(engine.outcomes)
            # A copy, since the engine's own outcomes grow.
            self.around.tell(RunProgress(self.members, progress, tuple(copy.deepcopy(engine.outcomes))))
            if progress.learned and progress.task == progress.tasks - 1:
                continue  # the results are about to be written; no checkpoint is needed any more
            stopping = self.around.should_stop()
            overdue = time.monotonic() - self._last_write >= self.around.checkpoint_seconds
            if progress.learned or stopping or overdue:
                self._save(engine, finished_task=progress.learned)
            if stopping:
                with writing(self.checkpoints.folder):
                    self.checkpoints.wait()
                return False
        self._finish(engine)
        return True

    def _begin(self) -> Engine:
        with writing(self.checkpoints.folder):
            checkpoint, rejected = self.checkpoints.load()
        engine = start_engine(self.members, self.around.datasets, self.around.device)
        if checkpoint is not None:
            engine.load_state(checkpoint.state)
            self._written, self._resumed = checkpoint.number, checkpoint.resumed + 1
            self._clock.training, self._clock.before = checkpoint.training_seconds, checkpoint.total_seconds
        going_on = f"from task {engine.task + 1}, step {engine.step}" if checkpoint else "from the beginning"
        for found in rejected:
            self.around.tell(CheckpointRejected(self.members, found.kept, found.reason, going_on))
        for claim in self._unfinished.values():
            steps = self.around.steps_of(claim.spec)
            self.around.tell(RunStarted(claim.spec, checkpoint is not None, len(self.members), steps))
        return engine

    def _save(self, engine: Engine, *, finished_task: bool) -> None:
        self._written += 1
        checkpoint = Checkpoint(engine.state(), self._written, self._resumed, self._clock.training, self._clock.total)
        with writing(self.checkpoints.folder):
            self.checkpoints.save(checkpoint, finished_task=finished_task)
        self._last_write = time.monotonic()

    def _finish(self, engine: Engine) -> None:
        """Write the results, and only then remove the checkpoints."""
        if self._unfinished:
            digest = Flattened.of(engine.state()).digest
            for spec, outcome, seen in zip(self.members, engine.outcomes, engine.observations, strict=True):
                claim = self._unfinished.pop(spec.id, None)
                if claim is not None:
                    result = self._result(spec, outcome, digest)
                    claim.finish(result, seen)
                    self.around.tell(RunFinished(result))
        self.discard_checkpoints()

    def _result(self, spec: Spec, outcome: Outcome, digest: str) -> Result:
        return Result(
            spec=spec,
            matrix=tuple(tuple(row) for row in outcome.matrix),
            untrained=tuple(outcome.untrained),
            training_seconds=self._clock.training,
            total_seconds=self._clock.total,
            side_by_side=len(self.members),
            resumed=self._resumed,
            state_digest=digest,
            device=device_name(self.around.device),
            commit=source_commit(),
            versions=versions(),
            finished_at=_now(),
            retention=tuple(outcome.retention),
            strength_record=outcome.strength_record,
        )

    def _record_failures(self, outcomes: Sequence[Outcome]) -> None:
        """Write down the runs that cannot go on while others beside them do."""
        for spec, outcome in zip(self.members, outcomes, strict=True):
            if outcome.failure is not None and spec.id in self._unfinished:
                self._fail(spec.id, outcome.failure)

    def _fail(self, run: str, reason: str) -> None:
        claim = self._unfinished.pop(run)
        claim.fail(Failure(reason, _now(), device_name(self.around.device), source_commit(), versions()))
        self.around.tell(RunFailed(claim.spec, reason))


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="microseconds")
