"""Reading a task's batches: in one process, or in several that count together as one."""

import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import Any, Protocol

from anchorhold.engine.accumulator import SampleAccumulator
from anchorhold.engine.batches import Batch, Forward
from anchorhold.engine.scores import OutputReading
from anchorhold.errors import AnchorholdWarning, BatchError
from anchorhold.guard.core import Runtime
from anchorhold.guard.distributed.all_batches import EveryonesBatches
from anchorhold.guard.distributed.gathering import is_cut_up, refuse_another_model
from anchorhold.guard.distributed.ranks import ALONE, Ranks, is_one_of_several
from anchorhold.guard.monitor import Monitor
from anchorhold.guard.task_classes import Classes, together
from anchorhold.retention.sample_marks import SampleMarks
from anchorhold.tensors.sharding import added_up_part, is_sharded


class ReadsBatches(Protocol):
    """What batches are read for."""

    @property
    def full(self) -> bool:
        """Return whether it has seen as many samples as it wants."""

    @property
    def reading(self) -> OutputReading | None:
        """Return how outputs are read, as the batches so far tell it."""

    @property
    def classes(self) -> int | None:
        """Return how many classes outputs tell apart, where that is known."""

    def read(self, batch: Any) -> Batch:
        """Return a batch as the model's are measured."""


def collect(
    runtime: Runtime, collectors: list[SampleAccumulator], batches: Iterable[Any], forward: Forward | None
) -> Classes:
    """Give the batches to the collectors until there are no more, or enough, and return the labels of all ranks."""
    if not runtime.by_layer:
        return _collected(runtime.ranks, collectors, batches, runtime.marking)
    look = partial(refuse_another_model, runtime.model, collectors[0], forward)
    cut_up = is_cut_up(runtime.model, runtime.ranks)
    every = EveryonesBatches(batches, runtime.ranks, runtime.measuring_ranks, look if cut_up else None)
    return _collected(ALONE, collectors, every, runtime.marking)


def _collected(
    ranks: Ranks, collectors: list[SampleAccumulator], batches: Iterable[Any], marks: SampleMarks | None
) -> Classes:
    """Do so with each rank's own batches.

    The first batches of all ranks count as one large batch in the order of the ranks, then the second ones, and so on:
    a limit takes the same samples as one process would that is given those. A rank that has no batch left waits for
    the others.
    """
    limits = [collector.limit for collector in collectors]
    limit = None if None in limits else max((each for each in limits if each is not None), default=None)
    reader = Reader(batches, collectors, None if marks is None else partial(marks.note, limit=limit))
    sizes = ranks.each(reader.read_next)
    while any(sizes):
        mine = sum(sizes[: ranks.rank])

        def measure_and_read_on(before: int = mine, together: int = sum(sizes)) -> int:
            for collector in collectors:
                seen = collector.seen
                collector.seen = seen + before
                if reader.batch is not None:
                    collector.update(reader.batch)
                collector.seen = seen + together
            return reader.read_next()

        sizes = ranks.each(measure_and_read_on)
    check_read_alike(ranks, collectors)
    return together(ranks.each(lambda: reader.classes))


def check_read_alike(ranks: Ranks, collectors: Sequence[ReadsBatches]) -> None:
    """Refuse sums over ranks whose batches told different things of what the model's outputs are."""
    told = ranks.each(lambda: [collector.reading for collector in collectors])
    for readings in zip(*told, strict=True):
        known = [(rank, reading) for rank, reading in enumerate(readings) if reading is not None]
        for rank, reading in known[1:]:
            first_rank, first = known[0]
            if reading.likelihood != first.likelihood:
                raise BatchError(
                    f"Rank {first_rank} of {ranks.size} read the outputs as {first.likelihood!r}, by {first.why}, and "
                    f"rank {rank} as {reading.likelihood!r}, by {reading.why}; expected one reading. Name the "
                    "measure's likelihood= on every rank."
                )
            if reading.class_dim != first.class_dim and None not in (reading.class_dim, first.class_dim):
                raise BatchError(
                    f"Rank {first_rank} of {ranks.size} found the outputs' classes in dimension {first.class_dim}, and "
                    f"rank {rank} in dimension {reading.class_dim}; expected one. Name the measure's class_dim= on "
                    "every rank."
                )


class Reader:
    """Read this rank's batches one by one, as long as a collector wants more."""

    def __init__(
        self,
        batches: Iterable[Any],
        collectors: Sequence[ReadsBatches],
        note: Callable[[Any], None] | None = None,
    ) -> None:
        self.batch: Batch | None = None
        self.classes = Classes()
        """The labels of all batches so far."""
        self._batches = batches
        self._iterator: Iterator[Any] | None = None
        self._collectors = collectors
        self._note = note
        """Is shown every batch as it was given, once it was found to be one."""

    def read_next(self) -> int:
        """Read the next batch and return the number of its samples, 0 at the end."""
        if self._iterator is None:
            self._iterator = iter(self._batches)
        self.batch = None
        if not all(collector.full for collector in self._collectors):
            for batch in self._iterator:
                self.batch = self._collectors[0].read(batch)  # all of them measure the same model
                self.classes |= Classes.of(self.batch.targets)
                if self._note is not None:
                    self._note(batch)
                return self.batch.size
        return 0


def add_up(runtime: Runtime, collector: SampleAccumulator, *, in_parts: bool = True) -> None:
    """Put the sums of all ranks into a collector; of sharded parameters this rank's part, unless layers are wanted."""
    ranks = runtime.ranks
    if ranks.size == 1 or runtime.by_layer:  # each has seen the samples of all
        return
    for name, own in collector.sums.items():
        parameter = runtime.parameters.get(name)
        spread = in_parts and parameter is not None and is_sharded(parameter)
        collector.sums[name] = added_up_part(own, parameter) if spread else ranks.add_up(own)
    collector.samples = sum(ranks.each(lambda: collector.samples))


def look_at_classes(monitors: Sequence[Monitor], classes: Classes, collectors: Iterable[ReadsBatches]) -> None:
    """Let monitors look at the labels that were read."""
    found = [collector.classes for collector in collectors]
    outputs = None if None in found else min((count for count in found if count is not None), default=None)
    for monitor in monitors:
        monitor.at_labels(classes, outputs)


def warn_if_alone_among_several(ranks: Ranks) -> None:
    """Warn of a process that measures by itself where several run."""
    if ranks.group is None and is_one_of_several():
        warnings.warn(
            "torch.distributed runs several processes, but this Guard was given a bare model and no group, so "
            "each process measures its own samples alone and they end up with different importances. Give it the "
            "model wrapped in DDP, or Guard(..., options=GuardOptions(group=torch.distributed.group.WORLD)).",
            AnchorholdWarning,
            stacklevel=7,
        )
