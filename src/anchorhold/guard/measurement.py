"""Asking every measure what it found for a task, without changing anything; from data in one process or in several."""

import warnings
from collections import ChainMap
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Protocol, cast

from torch import Tensor

from anchorhold.errors import AnchorholdWarning, BatchError, OrderError
from anchorhold.forms import Block, Matrix
from anchorhold.guard.chunks import all_to_storage, chunks_of
from anchorhold.guard.core import Core, GuardState, Runtime
from anchorhold.guard.distributed.all_batches import EveryonesBatches
from anchorhold.guard.distributed.gathering import is_cut_up, refuse_another_model
from anchorhold.guard.distributed.ranks import ALONE, Ranks, is_one_of_several
from anchorhold.guard.distributed.sharded_matrices import as_parameters_are, unsharded
from anchorhold.guard.distributed.whole_model import whole_model
from anchorhold.guard.ledger import Ledger, TaskImportance
from anchorhold.guard.microbatches.gradient_sums import MeanKey
from anchorhold.guard.monitor import Monitor
from anchorhold.guard.task_classes import Classes, together
from anchorhold.guard.task_gradient import TaskGradient
from anchorhold.measures import Fisher, SampleMeasure
from anchorhold.persample.batches import Batch, Forward, check_batches
from anchorhold.persample.engine import SampleAccumulator, SampleImportance
from anchorhold.persample.scores import OutputReading
from anchorhold.retention.sample_marks import SampleMarks
from anchorhold.tensors.sharding import added_up_part, is_sharded, wrap_local

DRAWS_APART = 2**20
"""What lies between the seeds of two ranks, which must not draw the same labels.

It is more than there are tasks, and within the 32 bits that a generator on the CPU looks at.
"""

REHEARSED = 2
"""Samples of a rehearsal: the fewest by which layers that mix them can be told."""


@dataclass
class TaskResult:
    """What a measure found for a task, on its way into the total."""

    matrices: dict[str, Matrix]
    lasting: dict[str, dict[str, Tensor]] = field(default_factory=dict)
    raw: dict[str, Tensor] | None = None
    samples: int | None = None
    fallback: dict[str, str] = field(default_factory=dict)
    labels: frozenset[int] = frozenset()
    outputs: str | None = None
    gradient: dict[str, Tensor] = field(default_factory=dict)
    """g, the mean gradient of the task's own loss, where the hold has a term of it."""

    def shown(self) -> TaskImportance:
        """Return it as users are told, and let go of each matrix once its diagonal, which is smaller, is there."""
        importance: dict[str, Tensor] = {}
        forms: dict[str, str] = {}
        for block in list(self.matrices):
            matrix = self.matrices.pop(block)
            importance |= matrix.diagonal()
            forms |= dict.fromkeys(matrix.block.parameters, matrix.description)
        return TaskImportance(importance, self.raw, self.samples, self.fallback, self.outputs, forms)


class ReadsBatches(Protocol):
    """What batches are read for."""

    @property
    def full(self) -> bool:
        """Whether it has seen as many samples as it wants."""

    @property
    def reading(self) -> OutputReading | None:
        """How outputs are read, as the batches so far tell it."""

    @property
    def classes(self) -> int | None:
        """How many classes outputs tell apart, where that is known."""

    def read(self, batch: Any) -> Batch:
        """Return a batch as the model's are measured."""


def measure_task(
    core: Core,
    monitors: Sequence[Monitor],
    batches: Iterable[Any] | None,
    forward: Forward | None,
    within: int | None = None,
) -> dict[str, TaskResult]:
    """Return what each measure found, by its name; one that only watches and saw no step is left out."""
    sampled = _sampled(core.state)
    turns = core.runtime.ranks.together(lambda: chunks_of(core, within))
    _warn_of_notices(core)
    gradient = TaskGradient(core) if core.options.gradient_term else None
    core.choose_gathering()
    found = core.runtime.ranks.together(lambda: _measure_without_data(core))
    if core.task.watched is not None:
        found |= core.runtime.ranks.together(lambda: _watched(core, sampled, batches))
        sampled = {}
    if sampled or gradient is not None:
        given = core.runtime.ranks.together(lambda: _given(batches, sampled))
        found |= TaskMeasurement(core, monitors, sampled, given, forward, gradient).in_turns(turns)
    if gradient is not None:
        found[core.state.driver].gradient = core.runtime.ranks.together(gradient.found)
    return found


def rehearse_task(
    core: Core, monitors: Sequence[Monitor], batches: Iterable[Any] | None, forward: Forward | None
) -> None:
    """Measure with the first samples of the data, if any measure looks at data, and forget what comes out."""
    sampled = _sampled(core.state)
    if not sampled and not core.options.gradient_term:
        return
    _warn_of_notices(core)
    core.choose_gathering()
    given = core.runtime.ranks.together(lambda: _given(batches, sampled))
    gradient = TaskGradient(core) if core.options.gradient_term else None
    TaskMeasurement(core, monitors, sampled, given, forward, gradient).rehearse()


def _warn_of_notices(core: Core) -> None:
    """Warn of what a form keeps in another way than was asked for, once for each form."""
    form = core.state.driving.form
    for message in form.notices(core.blocks(form)):
        core.runtime.warned.once("form", message, about=message)


def _sampled(state: GuardState) -> dict[str, SampleMeasure]:
    """Return the measures that look at data, by name."""
    ledgers = state.ledgers.items()
    return {name: cast("SampleMeasure", ledger.measure) for name, ledger in ledgers if ledger.measure.needs.data}


def _measure_without_data(core: Core) -> dict[str, TaskResult]:
    """Return what the measures found that look at the path or the weights alone."""
    found: dict[str, TaskResult] = {}
    for name, ledger in core.state.ledgers.items():
        needs = ledger.measure.needs
        if needs.data:
            continue
        if needs.path and not core.task.steps:
            if name == core.state.driver:
                raise OrderError(
                    f"{name} measures along the training path and has seen no step of an attached optimiser since the "
                    "last consolidation. Call attach(optimizer) before training; to protect a model that is already "
                    "trained, use a measure that looks at data, such as Fisher() or MAS()."
                )
            continue
        matrices, lasting = _finished(core, ledger, {})
        raw = dict(next(iter(ledger.running.values()))) if ledger.running else None
        found[name] = TaskResult(matrices, lasting, raw)
    return found


def _finished(
    core: Core, ledger: Ledger, means: Mapping[str, Tensor]
) -> tuple[dict[str, Matrix], dict[str, dict[str, Tensor]]]:
    return ledger.finished(core.measured, core.task.start, core.task.steps, means, core.state.anchor)


def squares_of_samples(core: Core, batches: Iterable[Any], forward: Forward | None) -> dict[str, Tensor]:
    """Return the mean of the samples' squared gradients, of the log-likelihood of their own labels, by parameter."""
    core.choose_gathering()
    model, parameters = whole_model(core.runtime.model, core.runtime.parameters, by_layer=core.runtime.by_layer)
    fisher = Fisher(labels="true")
    collector = fisher.accumulator(model, parameters, forward, reduction=core.own_parts(fisher.phi))
    collect(core.runtime, [collector], core.runtime.ranks.together(lambda: check_batches(batches)), forward)
    _add_up(core.runtime, collector)
    found = core.runtime.measuring_ranks.together(collector.result).values
    return {name: wrap_local(found[name], parameter) for name, parameter in core.runtime.parameters.items()}


def _given(batches: Iterable[Any] | None, sampled: Mapping[str, SampleMeasure]) -> Iterable[Any]:
    """Return the batches, or refuse to go on without them."""
    if batches is None and sampled:
        raise BatchError(
            f"{next(iter(sampled))} measures importance from data: call consolidate(batches) with the task's inputs or "
            "(inputs, targets), such as its DataLoader."
        )
    if batches is None:
        raise BatchError(
            "gradient_term=True takes the gradient of the task's own loss from data: call consolidate(batches) with "
            "the task's (inputs, targets), such as its DataLoader."
        )
    return check_batches(batches)


def _watched(core: Core, sampled: Mapping[str, SampleMeasure], batches: Iterable[Any] | None) -> dict[str, TaskResult]:
    """Return what measures that look at data have seen of micro-batches; data beside it are for others alone."""
    watched = core.task.watched
    assert watched is not None
    watched.refuse_unless_at(core.runtime.model)
    if batches is not None and not (
        core.options.gradient_term or any(hold.takes_batches for hold in core.options.holds)
    ):
        raise OrderError(
            "consolidate(batches) after watch_only(), which has measured this task already, and nothing else looks at "
            "data. Call consolidate() without, or restart_task() first to drop what was seen."
        )
    found = {}
    for name, measure in sampled.items():
        sums = watched.sums[MeanKey.by(measure)]
        matrices, lasting = _finished(core, core.state.ledgers[name], sums.squares())
        found[name] = TaskResult(matrices, lasting, None, sums.samples, {}, watched.classes.labels, sums.outputs)
    return found


@dataclass
class TaskMeasurement:
    """One measurement of a task from data: every batch goes to every measure, so that all see the same samples."""

    core: Core
    monitors: Sequence[Monitor]
    sampled: Mapping[str, SampleMeasure]
    """The measures that look at data, by name."""
    batches: Iterable[Any]
    forward: Forward | None
    gradient: TaskGradient | None = None
    """The gradient of the task's own loss, which is measured beside, where the hold has a linear term of it."""

    def in_turns(self, turns: Sequence[Sequence[Block]]) -> dict[str, TaskResult]:
        """Measure the layers of each turn in passes of their own, and all that has no layers in those of the first."""
        core = self.core
        passes = len(turns) * self._passes
        # A loader is not asked for an iterator to find out: it would draw from the random state.
        if passes > 1 and isinstance(self.batches, Iterator):
            raise BatchError(
                f"The form {core.state.driving.form.name!r} goes through the samples {passes} times, and the batches "
                "given can be gone through once: an iterator, or a generator. Give a DataLoader, or a list of batches."
            )
        if len(turns) == 1:
            return self.in_passes()
        found = self.in_passes(turns[0])
        of_driver = found[core.state.driver]
        of_driver.matrices = all_to_storage(core, of_driver.matrices)
        rest = replace(self, sampled={core.state.driver: self.sampled[core.state.driver]}, gradient=None)
        for blocks in turns[1:]:
            own = rest.in_passes(blocks)[core.state.driver]
            of_driver.matrices |= all_to_storage(core, own.matrices)
            of_driver.fallback |= own.fallback
        return found

    def rehearse(self) -> None:
        """Measure with the first samples, and drop what comes out."""
        collectors = list(dict.fromkeys(self._collectors().values()))
        if self.gradient is not None:
            collectors.append(self.gradient.collector(self.forward, collectors))
        for collector in collectors:
            collector.limit = min(REHEARSED, collector.limit or REHEARSED)
        classes = self._collect(collectors)
        for collector in collectors:
            if not collector.seen:
                self.core.runtime.ranks.together(collector.result)  # says that there were no batches
        look_at_classes(self.monitors, classes, collectors)

    @property
    def _passes(self) -> int:
        """Return how many times the batches are gone through."""
        return max((self.core.state.ledgers[name].form.passes for name in self.sampled), default=1)

    def in_passes(self, some: Sequence[Block] | None = None) -> dict[str, TaskResult]:
        """Measure in as many passes as the forms need; of the driving measure some blocks, where these are not all."""
        core = self.core
        known: dict[str, dict[str, Tensor]] = {name: {} for name in self.sampled}
        seen: dict[str, SampleImportance] = {}
        classes = Classes()
        for number in range(self._passes):
            wanted = {n: measure for n, measure in self.sampled.items() if number < core.state.ledgers[n].form.passes}
            gradient = self.gradient if number == 0 else None
            results, classes = replace(self, sampled=wanted, gradient=gradient).one_pass(known, some)
            for name, result in results.items():
                known[name] = self.learned_means(name, known[name] | result.values, some)
            seen = seen or results
        found = {}
        for name, measure in self.sampled.items():
            ledger = core.state.ledgers[name]
            if ledger.form.elementwise:
                matrices, lasting = _finished(core, ledger, known[name])
            else:
                made = ledger.form.matrices(measure, self._blocks(name, some), known[name])
                matrices, lasting = {key: as_parameters_are(each, core.measured) for key, each in made.items()}, {}
            first = seen[name]
            found[name] = TaskResult(
                matrices, lasting, None, first.samples, first.fallback, classes.labels, first.outputs
            )
        return found

    def _blocks(self, name: str, some: Sequence[Block] | None) -> Sequence[Block]:
        """Return the blocks that a measure is asked about: all of its form's, or some of those that drive the hold."""
        core = self.core
        return core.blocks(core.state.ledgers[name].form) if some is None or name != core.state.driver else some

    def learned_means(self, name: str, means: dict[str, Tensor], some: Sequence[Block] | None) -> dict[str, Tensor]:
        """Return what a form makes of the means so far, worked out by one process for all."""
        core = self.core
        ledger = core.state.ledgers[name]
        blocks, earlier, decay = self._blocks(name, some), ledger.added_to, ledger.decayed(core.state.decay)
        if ledger.form.elementwise:  # of which each process has a part of its own where parameters are sharded
            return ledger.form.prepare_next_pass(blocks, means, earlier, decay)
        earlier = {key: unsharded(matrix) for key, matrix in earlier.items()}
        return core.runtime.measuring_ranks.from_first(
            lambda: ledger.form.prepare_next_pass(blocks, means, earlier, decay)
        )

    def one_pass(
        self, known: Mapping[str, Mapping[str, Tensor]], some: Sequence[Block] | None
    ) -> tuple[dict[str, SampleImportance], Classes]:
        """Go through the samples once, and return each measure's means over those of all ranks, and all labels."""
        core, ranks = self.core, self.core.runtime.ranks
        is_first = not any(known.values())
        collectors = self._collectors(known, some)
        every = list(dict.fromkeys(collectors.values()))
        if self.gradient is not None:
            every.append(self.gradient.collector(self.forward, every if some is None else []))
        if is_first and not core.runtime.by_layer:
            warn_if_alone_among_several(ranks)
        classes = self._collect(every)
        if is_first:
            look_at_classes(self.monitors, classes, every)
        layers = {collectors[name] for name in self.sampled if not core.state.ledgers[name].form.elementwise}
        for collector in every:
            _add_up(core.runtime, collector, in_parts=collector not in layers)
        results = core.runtime.measuring_ranks.together(lambda: {collector: collector.result() for collector in every})
        # A rank that had no sample has not met the parameters that no rule covers.
        ways = ranks.each(lambda: [result.fallback for result in results.values()])
        for result, theirs in zip(results.values(), zip(*ways, strict=True), strict=True):
            result.fallback = dict(ChainMap(*theirs))
        return {name: results[collectors[name]] for name in self.sampled}, classes

    def _collectors(
        self, known: Mapping[str, Mapping[str, Tensor]] | None = None, some: Sequence[Block] | None = None
    ) -> dict[str, SampleAccumulator]:
        """Return each measure's collector; measures that make something of the same mean, as a root does, share one."""
        core = self.core
        model, parameters = whole_model(core.runtime.model, core.measured, by_layer=core.runtime.by_layer)
        draws = core.state.tasks + (0 if core.runtime.by_layer else DRAWS_APART * core.runtime.ranks.rank)
        made: dict[object, SampleAccumulator] = {}
        found = {}
        for name, measure in self.sampled.items():
            form = core.state.ledgers[name].form
            mean = (measure.score, measure.phi, measure.sample_limit, measure.draw_seed, form)
            if mean not in made:
                blocks = self._blocks(name, some)
                partly = some is not None and name == core.state.driver
                own = [member for block in blocks for member in block.parameters] if partly else parameters
                parts = core.own_parts(measure.phi) if form.elementwise else None
                made[mean] = measure.accumulator(
                    model,
                    {member: parameters[member] for member in own},
                    self.forward,
                    task=draws,
                    reduction=parts or partial(form.reduction, measure, blocks, known=(known or {}).get(name, {})),
                )
            found[name] = made[mean]
        return found

    def _collect(self, collectors: list[SampleAccumulator]) -> Classes:
        """Give the batches to the collectors until there are no more, or enough. Return the labels of all ranks."""
        return collect(self.core.runtime, collectors, self.batches, self.forward)


def look_at_classes(monitors: Sequence[Monitor], classes: Classes, collectors: Iterable[ReadsBatches]) -> None:
    """Let monitors look at the labels that were read."""
    found = [collector.classes for collector in collectors]
    outputs = None if None in found else min((count for count in found if count is not None), default=None)
    for monitor in monitors:
        monitor.at_labels(classes, outputs)


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
    """Reads this rank's batches one by one, as long as a collector wants more."""

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


def _add_up(runtime: Runtime, collector: SampleAccumulator, *, in_parts: bool = True) -> None:
    """Put the sums of all ranks into a collector; of sharded parameters this rank's part, unless layers are wanted."""
    ranks = runtime.ranks
    if ranks.size == 1 or runtime.by_layer:  # each has seen the samples of all
        return
    for name, own in collector.sums.items():
        parameter = runtime.parameters.get(name)
        spread = in_parts and parameter is not None and is_sharded(parameter)
        collector.sums[name] = added_up_part(own, parameter) if spread else ranks.add_up(own)
    collector.samples = sum(ranks.each(lambda: collector.samples))


def warn_if_alone_among_several(ranks: Ranks) -> None:
    """Warn of a process that measures by itself where several run."""
    if ranks.group is None and is_one_of_several():
        warnings.warn(
            "torch.distributed runs several processes, but this Guard was given a bare model and no group, so "
            "each process measures its own samples alone and they end up with different importances. Give it the "
            "model wrapped in DDP, or Guard(..., group=torch.distributed.group.WORLD).",
            AnchorholdWarning,
            stacklevel=7,
        )
