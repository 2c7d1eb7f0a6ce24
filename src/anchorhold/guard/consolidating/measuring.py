"""Asking every measure what it found for a task, without changing anything; from data in one process or in several."""

import warnings
from collections import ChainMap
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Protocol, cast

from torch import Tensor

from anchorhold.engine.accumulator import SampleAccumulator, SampleImportance
from anchorhold.engine.batches import Batch, Forward, check_batches
from anchorhold.engine.scores import OutputReading
from anchorhold.engine.tracing.plan import Plans
from anchorhold.errors import AnchorholdWarning, BatchError, OrderError
from anchorhold.forms import Block, Matrix
from anchorhold.guard.centre.task_gradient import TaskGradient
from anchorhold.guard.consolidating.turns import put_to_rest, turns_of
from anchorhold.guard.distributed.everyones_batches import EveryonesBatches
from anchorhold.guard.distributed.gathering import is_cut_up, refuse_another_model
from anchorhold.guard.distributed.ranks import ALONE, Ranks, is_one_of_several
from anchorhold.guard.distributed.sharded_matrices import as_parameters_are, unsharded
from anchorhold.guard.distributed.whole_model import whole_model
from anchorhold.guard.ledger import Ledger, TaskImportance
from anchorhold.guard.memory import Memory
from anchorhold.guard.micro_batches.gradient_sums import Asked
from anchorhold.guard.noticing.new_classes import Classes, together, warn_of_new_classes
from anchorhold.guard.noticing.telling import tell
from anchorhold.measures import Fisher, SampleMeasure
from anchorhold.retention.sample_marks import SampleMarks
from anchorhold.tensors.sharding import added_up_part, is_sharded, wrap_local

DRAWS_APART = 2**20
"""What lies between the seeds of two ranks, which must not draw the same labels.

It is more than there are tasks, and within the 32 bits that a generator on the CPU looks at.
"""

REHEARSED = 2
"""Samples of a rehearsal: the fewest by which layers that mix them can be told."""


@dataclass
class Finding:
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
            forms |= dict.fromkeys(matrix.block.parameters, matrix.said)
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
    memory: Memory, batches: Iterable[Any] | None, forward: Forward | None, within: int | None = None
) -> dict[str, Finding]:
    """Return what each measure found, by its name; one that only watches and saw no step is left out."""
    sampled = _sampled(memory)
    turns = memory.ranks.together(lambda: turns_of(memory, within))
    _tell_notices(memory)
    gradient = TaskGradient(memory) if memory.gradient_term else None
    memory.choose_gathering()
    found = memory.ranks.together(lambda: _measure_without_data(memory))
    if memory.watched is not None:
        found |= memory.ranks.together(lambda: _watched(memory, sampled, batches))
        sampled = {}
    if sampled or gradient is not None:
        given = memory.ranks.together(lambda: _given(batches, sampled))
        found |= _measure_in_turns(memory, sampled, given, forward, gradient, turns)
    if gradient is not None:
        found[memory.driver].gradient = memory.ranks.together(gradient.found)
    return found


def rehearse_task(memory: Memory, batches: Iterable[Any] | None, forward: Forward | None) -> None:
    """Measure with the first samples of the data, if any measure looks at data, and forget what comes out."""
    sampled = _sampled(memory)
    if not sampled and not memory.gradient_term:
        return
    _tell_notices(memory)
    memory.choose_gathering()
    given = memory.ranks.together(lambda: _given(batches, sampled))
    collectors = list(dict.fromkeys(_collectors(memory, sampled, forward).values()))
    if memory.gradient_term:
        collectors.append(TaskGradient(memory).collector(forward, collectors))
    for collector in collectors:
        collector.limit = min(REHEARSED, collector.limit or REHEARSED)
    classes = _collect(memory, collectors, given, forward)
    for collector in collectors:
        if not collector.seen:
            memory.ranks.together(collector.result)  # says that there were no batches
    look_at_classes(memory, classes, collectors)


def _tell_notices(memory: Memory) -> None:
    """Warn of what a form keeps in another way than was asked for, once for each form."""
    form = memory.driving.form
    for message in form.notices(memory.blocks(form)):
        if message not in memory.told:
            memory.told.add(message)
            tell(message)


def _sampled(memory: Memory) -> dict[str, SampleMeasure]:
    """Return the measures that look at data, by name."""
    ledgers = memory.ledgers.items()
    return {name: cast("SampleMeasure", ledger.measure) for name, ledger in ledgers if ledger.measure.needs.data}


def _measure_without_data(memory: Memory) -> dict[str, Finding]:
    """Return what the measures found that look at the path or the weights alone."""
    found: dict[str, Finding] = {}
    for name, ledger in memory.ledgers.items():
        needs = ledger.measure.needs
        if needs.data:
            continue
        if needs.path and not memory.steps:
            if name == memory.driver:
                raise OrderError(
                    f"{name} measures along the training path and has seen no step of an attached optimiser since the "
                    "last consolidation. Call attach(optimizer) before training; to protect a model that is already "
                    "trained, use a measure that looks at data, such as Fisher() or MAS()."
                )
            continue
        matrices, lasting = _finished(memory, ledger, {})
        raw = dict(next(iter(ledger.running.values()))) if ledger.running else None
        found[name] = Finding(matrices, lasting, raw)
    return found


def _finished(
    memory: Memory, ledger: Ledger, means: Mapping[str, Tensor]
) -> tuple[dict[str, Matrix], dict[str, dict[str, Tensor]]]:
    return ledger.finished(memory.measured, memory.start, memory.steps, means, memory.anchor)


def squares_of_samples(memory: Memory, batches: Iterable[Any], forward: Forward | None) -> dict[str, Tensor]:
    """Return the mean of the samples' squared gradients, of the log-likelihood of their own labels, by parameter."""
    memory.choose_gathering()
    model, parameters = whole_model(memory.model, memory.parameters, by_layer=memory.by_layer)
    fisher = Fisher(labels="true")
    collector = fisher.accumulator(model, parameters, forward, reduction=memory.own_parts(fisher.phi))
    _collect(memory, [collector], memory.ranks.together(lambda: check_batches(batches)), forward)
    _add_up(memory, collector)
    found = memory.everyone.together(collector.result).values
    return {name: wrap_local(found[name], parameter) for name, parameter in memory.parameters.items()}


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


def _watched(memory: Memory, sampled: Mapping[str, SampleMeasure], batches: Iterable[Any] | None) -> dict[str, Finding]:
    """Return what measures that look at data have seen of micro-batches; data beside it are for others alone."""
    watched = memory.watched
    assert watched is not None
    watched.refuse_unless_at(memory.model)
    if batches is not None and not (memory.gradient_term or any(hold.takes_batches for hold in memory.holds)):
        raise OrderError(
            "consolidate(batches) after watch_only(), which has measured this task already, and nothing else looks at "
            "data. Call consolidate() without, or restart_task() first to drop what was seen."
        )
    found = {}
    for name, measure in sampled.items():
        sums = watched.sums[Asked.by(measure)]
        matrices, lasting = _finished(memory, memory.ledgers[name], sums.squares())
        found[name] = Finding(matrices, lasting, None, sums.samples, {}, watched.classes.labels, sums.outputs)
    return found


def _measure_in_turns(
    memory: Memory,
    sampled: Mapping[str, SampleMeasure],
    batches: Iterable[Any],
    forward: Forward | None,
    gradient: TaskGradient | None,
    turns: Sequence[Sequence[Block]],
) -> dict[str, Finding]:
    """Measure the layers of each turn in passes of their own, and all that has no layers in those of the first."""
    passes = len(turns) * max((memory.ledgers[name].form.passes for name in sampled), default=1)
    # A loader is not asked for an iterator to find out: it would draw from the random state.
    if passes > 1 and isinstance(batches, Iterator):
        raise BatchError(
            f"The form {memory.driving.form.name!r} goes through the samples {passes} times, and the batches given can "
            "be gone through once: an iterator, or a generator. Give a DataLoader, or a list of batches."
        )
    plans = Plans()  # the weights stay as they are until all has been measured
    if len(turns) == 1:
        return _measure_samples(memory, sampled, batches, forward, plans, gradient)
    found: dict[str, Finding] = {}
    driver = {memory.driver: sampled[memory.driver]}
    for number, blocks in enumerate(turns):
        first = number == 0
        here = _measure_samples(
            memory, sampled if first else driver, batches, forward, plans, gradient if first else None, blocks
        )
        own = here[memory.driver]
        own.matrices = put_to_rest(memory, own.matrices)
        if first:
            found = here
        else:
            found[memory.driver].matrices |= own.matrices
            found[memory.driver].fallback |= own.fallback
    return found


def _measure_samples(
    memory: Memory,
    sampled: Mapping[str, SampleMeasure],
    batches: Iterable[Any],
    forward: Forward | None,
    plans: Plans,
    gradient: TaskGradient | None = None,
    some: Sequence[Block] | None = None,
) -> dict[str, Finding]:
    """Give every batch to every measure that looks at data, so that all of them see the same samples.

    ``some`` are the blocks that are measured of the measure that drives the hold, where these are not all.
    """
    passes = max((memory.ledgers[name].form.passes for name in sampled), default=1)
    known: dict[str, dict[str, Tensor]] = {name: {} for name in sampled}
    seen: dict[str, SampleImportance] = {}
    classes = Classes()
    for number in range(passes):
        wanted = {name: measure for name, measure in sampled.items() if number < memory.ledgers[name].form.passes}
        pass_gradient = gradient if number == 0 else None
        results, classes = _pass(memory, wanted, batches, forward, plans, known, pass_gradient, some)
        for name, result in results.items():
            known[name] = _learned(memory, name, known[name] | result.values, some)
        seen = seen or results
    found = {}
    for name, measure in sampled.items():
        ledger = memory.ledgers[name]
        if ledger.form.elementwise:
            matrices, lasting = _finished(memory, ledger, known[name])
        else:
            made = ledger.form.matrices(measure, _blocks(memory, name, some), known[name])
            matrices, lasting = {key: as_parameters_are(each, memory.measured) for key, each in made.items()}, {}
        first = seen[name]
        found[name] = Finding(matrices, lasting, None, first.samples, first.fallback, classes.labels, first.outputs)
    return found


def _blocks(memory: Memory, name: str, some: Sequence[Block] | None) -> Sequence[Block]:
    """Return the blocks that a measure is asked about: all of its form's, or some of those that drive the hold."""
    return memory.blocks(memory.ledgers[name].form) if some is None or name != memory.driver else some


def _learned(
    memory: Memory, name: str, means: dict[str, Tensor], some: Sequence[Block] | None = None
) -> dict[str, Tensor]:
    """Return what a form makes of the means so far, worked out by one process for all."""
    ledger = memory.ledgers[name]
    blocks = _blocks(memory, name, some)
    earlier = ledger.added_to
    decay = ledger.decayed(memory.decay)
    if ledger.form.elementwise:  # of which each process has a part of its own where parameters are sharded
        return ledger.form.learned(blocks, means, earlier, decay)
    earlier = {key: unsharded(matrix) for key, matrix in earlier.items()}
    return memory.everyone.from_first(lambda: ledger.form.learned(blocks, means, earlier, decay))


def _pass(
    memory: Memory,
    sampled: Mapping[str, SampleMeasure],
    batches: Iterable[Any],
    forward: Forward | None,
    plans: Plans,
    known: Mapping[str, Mapping[str, Tensor]],
    gradient: TaskGradient | None,
    some: Sequence[Block] | None = None,
) -> tuple[dict[str, SampleImportance], Classes]:
    """Go through the samples once, and return each measure's means over those of all ranks, and all labels."""
    ranks = memory.ranks
    collectors = _collectors(memory, sampled, forward, known, some, plans)
    every = list(dict.fromkeys(collectors.values()))
    if gradient is not None:
        every.append(gradient.collector(forward, every if some is None else []))
    if not any(known.values()) and not memory.by_layer:  # of several passes, before the first
        warn_if_alone_among_several(ranks)
    classes = _collect(memory, every, batches, forward)
    if not any(known.values()):
        look_at_classes(memory, classes, every)
    layers = {collectors[name] for name in sampled if not memory.ledgers[name].form.elementwise}
    for collector in every:
        _add_up(memory, collector, in_parts=collector not in layers)
    results = memory.everyone.together(lambda: {collector: collector.result() for collector in every})
    # A rank that had no sample has not met the parameters that no rule covers.
    ways = ranks.each(lambda: [result.fallback for result in results.values()])
    for result, theirs in zip(results.values(), zip(*ways, strict=True), strict=True):
        result.fallback = dict(ChainMap(*theirs))
    return {name: results[collectors[name]] for name in sampled}, classes


def look_at_classes(memory: Memory, classes: Classes, collectors: Iterable[ReadsBatches]) -> None:
    """Warn of classes that are all new; holds of other kinds may keep the old ones."""
    if not memory.holds and memory.strength:
        found = [collector.classes for collector in collectors]
        outputs = None if None in found else min((count for count in found if count is not None), default=None)
        warn_of_new_classes(memory.labels, classes, outputs)


def _collectors(
    memory: Memory,
    sampled: Mapping[str, SampleMeasure],
    forward: Forward | None,
    known: Mapping[str, Mapping[str, Tensor]] | None = None,
    some: Sequence[Block] | None = None,
    plans: Plans | None = None,
) -> dict[str, SampleAccumulator]:
    """Return each measure's collector, which those share that make something else of the same mean, as a root does."""
    model, parameters = whole_model(memory.model, memory.measured, by_layer=memory.by_layer)
    draws = memory.tasks + (0 if memory.by_layer else DRAWS_APART * memory.ranks.rank)
    made: dict[object, SampleAccumulator] = {}
    found = {}
    for name, measure in sampled.items():
        form = memory.ledgers[name].form
        mean = (measure.score, measure.phi, measure.sample_limit, measure.draw_seed, form)
        if mean not in made:
            blocks = _blocks(memory, name, some)
            partly = some is not None and name == memory.driver
            own = [member for block in blocks for member in block.parameters] if partly else parameters
            parts = memory.own_parts(measure.phi) if form.elementwise else None
            made[mean] = measure.accumulator(
                model,
                {member: parameters[member] for member in own},
                forward,
                task=draws,
                reduction=parts or partial(form.reduction, measure, blocks, known=(known or {}).get(name, {})),
                plans=plans,
            )
        found[name] = made[mean]
    return found


def _collect(
    memory: Memory, collectors: list[SampleAccumulator], batches: Iterable[Any], forward: Forward | None
) -> Classes:
    """Give the batches to the collectors until there are no more, or enough, and return the labels of all ranks."""
    if not memory.by_layer:
        return _collected(memory.ranks, collectors, batches, memory.marking)
    look = partial(refuse_another_model, memory.model, collectors[0], forward)
    cut_up = is_cut_up(memory.model, memory.ranks)
    every = EveryonesBatches(batches, memory.ranks, memory.everyone, look if cut_up else None)
    return _collected(ALONE, collectors, every, memory.marking)


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


def _add_up(memory: Memory, collector: SampleAccumulator, *, in_parts: bool = True) -> None:
    """Put the sums of all ranks into a collector; of sharded parameters this rank's part, unless layers are wanted."""
    ranks = memory.ranks
    if ranks.size == 1 or memory.by_layer:  # each has seen the samples of all
        return
    for name, own in collector.sums.items():
        parameter = memory.parameters.get(name)
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
