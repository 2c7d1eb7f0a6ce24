"""What became of the specs of one call, whoever runs them: told to those who listen, and summed up."""

import contextlib
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

from anchorhold.errors import DamagedError
from anchorhold_lab.experiments.running.events import Event, RunFailed, RunFinished, RunSkipped, StoreDamaged
from anchorhold_lab.experiments.specs.spec import Spec
from anchorhold_lab.experiments.store.run_results import Result
from anchorhold_lab.experiments.store.store import RunClaim, Store


@dataclass
class Summary:
    """What became of the specs that were given."""

    finished: list[Result] = field(default_factory=list)
    failed: list[RunFailed] = field(default_factory=list)
    skipped: list[RunSkipped] = field(default_factory=list)
    damaged: list[str] = field(default_factory=list)
    """Which files beside those of these runs cannot be used, and why; those of a run are in why it was skipped."""
    interrupted: bool = False
    """Whether there was a request to stop; what was under way goes on from its checkpoint next time."""


class Bookkeeping:
    """The books that an executor keeps.

    Args:
        store: where results are, and go to.
        on_event: is told of everything that happens.
        stop: an event, or a function that says whether to stop.
    """

    def __init__(
        self,
        store: Store,
        on_event: Callable[[Event], None] | None,
        stop: Callable[[], bool] | threading.Event | None,
    ) -> None:
        self.store = store
        self.summary = Summary()
        self._on_event = on_event
        self._stop = stop.is_set if isinstance(stop, threading.Event) else stop

    def is_to_run(self, spec: Spec, *, retry: bool) -> bool:
        """Whether a run's result is missing; that of a failed one only where it is to be tried again."""
        status = self.store.status(spec.id)
        if status == "finished":
            if self._tell_finished(spec):
                self.store.tidy(spec)
        elif status == "failed" and not retry:
            self.tell(RunSkipped(spec, "failed before", self._why_failed(spec)))
        elif status == "damaged":  # the other runs have nothing to do with it
            self.tell(RunSkipped(spec, "damaged", self.store.entry(spec).damage))
        else:
            return True
        return False

    def _tell_finished(self, spec: Spec) -> bool:
        """Say that a run has a result, and return whether that can be used.

        One that cannot is not made again: it may be restored, and what is in a store is never written over.
        """
        try:
            self.store.get(spec.id)
        except DamagedError as error:
            self.tell(RunSkipped(spec, "damaged", str(error)))
            return False
        self.tell(RunSkipped(spec, "finished already"))
        return True

    def _why_failed(self, spec: Spec) -> str:
        try:
            return self.store.failures(spec.id)[-1].reason
        except DamagedError as error:
            return str(error)  # the other runs have nothing to do with it

    @contextlib.contextmanager
    def claimed(self, specs: Sequence[Spec]) -> Iterator[tuple[dict[str, RunClaim], list[Spec]]]:
        """Hold the claims of those that nobody else runs, by id; the others are given beside them."""
        claims: dict[str, RunClaim] = {}
        busy = []
        try:
            for spec in specs:
                claim = self.store.claim(spec)
                if claim is None:
                    busy.append(spec)
                    continue
                claims[spec.id] = claim
                # It may have finished between the look at the store and the claim.
                if self.store.status(spec.id) == "finished":
                    claims.pop(spec.id).release()
                    self._tell_finished(spec)
            yield claims, busy
        finally:
            for claim in claims.values():
                claim.release()

    def should_stop(self) -> bool:
        """Whether there was a request to stop, now or before."""
        if self._stop is not None and self._stop():
            self.summary.interrupted = True
        return self.summary.interrupted

    def complain(self, damage: str) -> None:
        """Name what cannot be used, once."""
        if damage not in self.summary.damaged:
            self.tell(StoreDamaged(damage))

    def tell(self, event: Event) -> None:
        """Take in what happened, and pass it on."""
        match event:
            case RunFinished(result):
                self.summary.finished.append(result)
            case RunFailed():
                self.summary.failed.append(event)
            case RunSkipped():
                self.summary.skipped.append(event)
            case StoreDamaged(reason):
                self.summary.damaged.append(reason)
        if self._on_event is not None:
            self._on_event(event)
