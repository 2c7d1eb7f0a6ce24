"""The local executor: runs specs one after another, or side by side, into a store."""

import os
import threading
import traceback
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import torch

from anchorhold.errors import AnchorholdError, ConfigurationError, DataError, StoreError
from anchorhold_lab.data.locations import Datasets
from anchorhold_lab.experiments.running.bookkeeping import Bookkeeping, Summary
from anchorhold_lab.experiments.running.events import Event, RunSkipped
from anchorhold_lab.experiments.running.grouping import Group, plan
from anchorhold_lab.experiments.running.job import Job, Surroundings
from anchorhold_lab.experiments.running.sources_at_hand import load_sources
from anchorhold_lab.experiments.running.step_counts import StepCounts
from anchorhold_lab.experiments.specs.spec import Spec
from anchorhold_lab.experiments.store.store import RunClaim, Store, as_store
from anchorhold_lab.training.out_of_memory import is_out_of_memory

USUAL_SIDE_BY_SIDE = 10
"""How many runs train together on a GPU; on a CPU they would only wait for each other."""


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

    A run that was killed goes on from its last checkpoint, and one that was made from a file (:func:`load_source`) with
    the file that the store has kept. Several processes may do this with one store at the same
    time: each run is made once. A run that diverges or runs out of memory is written down as failed, and the others
    go on; a store that cannot be written ends everything with a :class:`~anchorhold.errors.StoreError`.

    Args:
        specs: the runs, or one of them.
        store: where results go, or its folder.
        data_dir: the folder of data sets, as in :func:`anchorhold_lab.data.load`.
        device: what to train on; a GPU by default, if there is one.
        side_by_side: how many runs that differ in seed and strength alone train together; 10 on a GPU by default. Those
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
    executor = _Executor(Bookkeeping(as_store(store), on_event, stop), Datasets(data_dir), chosen, checkpoint_seconds)
    return executor.execute(distinct(specs), together, retry=retry)


def distinct(specs: Spec | Iterable[Spec]) -> list[Spec]:
    """Return every spec once, of which there may be only one."""
    wanted: Any = [specs] if isinstance(specs, Spec) else specs
    if isinstance(wanted, str) or not isinstance(wanted, Iterable):  # a text's letters would be taken for specs
        raise _no_spec(wanted)
    found: dict[str, Spec] = {}
    for spec in wanted:
        if not isinstance(spec, Spec):
            raise _no_spec(spec)
        found[spec.id] = spec
    return list(found.values())


def _no_spec(given: object) -> ConfigurationError:
    shown = repr(given) if isinstance(given, str) else f"a {type(given).__name__}"
    return ConfigurationError(
        f"specs has {shown}; expected a Spec, or several, such as paper_spec('permuted-digits', 'SI'), and after it "
        "the store."
    )


class _Executor:
    def __init__(self, books: Bookkeeping, datasets: Datasets, device: torch.device, checkpoint_seconds: float) -> None:
        self.books = books
        self.store = books.store
        self.counts = StepCounts(datasets)
        self.around = Surroundings(
            self.store, datasets, device, checkpoint_seconds, self.counts.of, books.tell, books.should_stop
        )

    def execute(self, specs: Sequence[Spec], together: int, *, retry: bool) -> Summary:
        left = [spec for spec in specs if self.books.is_to_run(spec, retry=retry)]
        load_sources(left, self.store)
        for spec in left:
            self.counts.of(
                spec
            )  # data that is missing and settings that do not fit it are noticed before anything runs
        self.store.tidy_groups()
        # Runs that another process has are asked for again at the end, in case that it was killed.
        for _ in range(2):
            busy: list[Spec] = []
            for group in plan(left, self.store, together, self.books.complain):
                if not self.books.should_stop():
                    busy += self._run_group(group)
            left = busy
        for spec in left:
            self.books.tell(RunSkipped(spec, "being run by another process"))
        self.store.tidy_groups()
        return self.books.summary

    def _run_group(self, group: Group) -> list[Spec]:
        """Run what nobody else runs, and return the rest."""
        with self.books.claimed(group.wanted) as (claims, busy):
            complete = len(claims) == len(group.wanted)
            self._run_claimed(group.members if complete else [claim.spec for claim in claims.values()], claims)
        return busy

    def _run_claimed(self, members: Sequence[Spec], claims: dict[str, RunClaim]) -> None:
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
            if not self.books.should_stop():
                self._run_claimed([claim.spec for claim in half], {claim.spec.id: claim for claim in half})

    def _attempt(self, job: Job) -> str | None:
        """Return why a job failed, if it did. What failed is forgotten before anything else is tried."""
        try:
            if not job.run():
                self.books.summary.interrupted = True
        except (StoreError, DataError):
            raise
        except AnchorholdError as error:
            return str(error)
        except Exception as error:
            if not is_out_of_memory(error):
                if not any(spec.source is not None for spec in job.members):
                    raise
                # In code of the user's own, with which the other runs have nothing to do.
                return f"{type(error).__name__}: {str(error).rstrip('.')}{_where(error)}."
            return (
                f"Out of memory: {str(error).strip() or 'no more could be had'}. Take a smaller batch_size, narrower "
                "hidden layers, fewer runs side by side, or a device with more memory."
            )
        return None


def _where(error: Exception) -> str:
    """Return the line of the innermost code that is neither ours nor an installed package's."""
    frames = traceback.extract_tb(error.__traceback__)
    passed_over = {"site-packages", "anchorhold", "anchorhold_lab"}
    own = [frame for frame in frames if not passed_over & set(Path(frame.filename).parts)]
    return f" (in {own[-1].name}, {Path(own[-1].filename).name} line {own[-1].lineno})" if own else ""
