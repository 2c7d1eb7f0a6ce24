"""Asking every measure what it found for a task, without changing anything; from data in one process or in several."""

from collections import ChainMap
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, cast

from torch import Tensor
from torch.utils._pytree import tree_leaves

from anchorhold.engine.accumulator import SampleAccumulator, SampleImportance
from anchorhold.engine.batches import Forward, check_batches
from anchorhold.engine.phi import IDENTITY
from anchorhold.engine.scores import LogLikelihood
from anchorhold.engine.scores.base import PositionScore
from anchorhold.engine.tracing.plan import Plans
from anchorhold.errors import BatchError, OrderError
from anchorhold.forms import Block, Matrix
from anchorhold.guard.batches import add_up, collect, look_at_classes, warn_if_alone_among_several
from anchorhold.guard.core import Core, GuardState
from anchorhold.guard.costs import all_to_storage, chunks_of
from anchorhold.guard.distributed.sharded_matrices import as_parameters_are, unsharded
from anchorhold.guard.distributed.whole_model import whole_model
from anchorhold.guard.ledger import Ledger, TaskImportance
from anchorhold.guard.microbatches.gradient_sums import MeanKey
from anchorhold.guard.monitor import Monitor
from anchorhold.guard.task_classes import Classes
from anchorhold.measures import Fisher, SampleMeasure
from anchorhold.tensors.sharding import wrap_local

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
    tokens: float | None = None
    """T, the scored tokens in a sample; ``None`` where nobody has counted them."""

    def shown(self) -> TaskImportance:
        """Return it for users, and drop each matrix once its diagonal, which is smaller, is there."""
        importance: dict[str, Tensor] = {}
        forms: dict[str, str] = {}
        for block in list(self.matrices):
            matrix = self.matrices.pop(block)
            importance |= matrix.diagonal()
            forms |= dict.fromkeys(matrix.block.parameters, matrix.description)
        return TaskImportance(importance, self.raw, self.samples, self.fallback, self.outputs, forms, self.tokens)


def measure_task(
    core: Core,
    monitors: Sequence[Monitor],
    batches: Iterable[Any] | None,
    forward: Forward | None,
    within: int | None = None,
) -> dict[str, TaskResult]:
    """Return what each measure found, by its name; one that only watches and saw no step is left out."""
    sampled = _sampled(core.state)
    chunks = core.runtime.ranks.together(lambda: chunks_of(core, within))
    _warn_of_notices(core)
    gradient = TaskGradient(core) if core.options.gradient_term else None
    core.choose_gathering()
    found = core.runtime.ranks.together(lambda: _measure_without_data(core))
    if core.task.watched is not None:
        found |= core.runtime.ranks.together(lambda: _watched(core, sampled, batches))
        sampled = {}
    if sampled or gradient is not None:
        given = core.runtime.ranks.together(lambda: _given(batches, sampled))
        found |= TaskMeasurement(core, monitors, sampled, given, forward, gradient).in_chunks(chunks)
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
                    f"{name} measures along the training path and has seen no step of an attached optimizer since the "
                    "last consolidation. Call attach(optimizer) before training; to protect a model that is already "
                    "trained, use a measure that looks at data, such as Fisher() or MAS()."
                )
            continue
        matrices, lasting = _finished(core, ledger, {})
        raw = dict(next(iter(ledger.running.values()))) if ledger.running else None
        # Of a gradient of the mean loss, each thing that the loss is a mean over is a sample of its own.
        found[name] = TaskResult(matrices, lasting, raw, tokens=1.0 if ledger.measure.is_in_nats else None)
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
    add_up(core.runtime, collector)
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
            "consolidate(batches) after gradients.microbatches(), which has measured this task already, and nothing "
            "else looks at data. Call consolidate() without, or gradients.restart_task() first to drop what was seen."
        )
    found = {}
    for name, measure in sampled.items():
        sums = watched.sums[MeanKey.by(measure)]
        matrices, lasting = _finished(core, core.state.ledgers[name], sums.squares())
        found[name] = TaskResult(
            matrices,
            lasting,
            samples=sums.samples,
            labels=watched.classes.labels,
            outputs=sums.outputs,
            tokens=sums.tokens,
        )
    return found


class TaskLogLikelihood(LogLikelihood):
    """The log-likelihood of the data's own labels, as messages call it here."""

    def __repr__(self) -> str:
        return "gradient_term=True"


class TaskGradient:
    r"""Collect g, the mean gradient of a task's own loss where the task has ended: SOLA's gradient term.

    The loss is the negative log-likelihood of the data's own labels, with the network in eval mode: cross-entropy, that
    of labels each 0 or 1, or :math:`\tfrac12\|y - z\|^2`. The per-sample engine goes through the samples for it once,
    beside the measures, with :math:`\varphi(u) = u`.
    """

    def __init__(self, core: Core) -> None:
        self.core = core
        self._collector: SampleAccumulator | None = None

    def collector(self, forward: Forward | None, beside: Sequence[SampleAccumulator]) -> SampleAccumulator:
        """Return what takes the batches in, of the same model as others, which a sharded one is made whole for once."""
        core, measure = self.core, self.core.state.driving.measure
        model, parameters = (
            (beside[0].model, beside[0].parameters)
            if beside
            else whole_model(core.runtime.model, core.runtime.parameters, by_layer=core.runtime.by_layer)
        )
        limit, asked = (measure.sample_limit, measure.score) if isinstance(measure, SampleMeasure) else (None, None)
        score = TaskLogLikelihood("true")
        if isinstance(asked, PositionScore):  # read and averaged as the measure has it, so that Q and g are of one loss
            # A sum over positions is the same whether each is a sample of its own; what it is divided by is not.
            per = "token" if asked.positions == "separate" else asked.per
            score = TaskLogLikelihood("true", likelihood=asked.likelihood, class_dim=asked.class_dim, per=per)
        self._collector = SampleAccumulator(
            model,
            score,
            IDENTITY,
            parameters=parameters,
            forward=forward,
            samples=limit,
            reduction=core.own_parts(IDENTITY),
        )
        return self._collector

    def found(self) -> dict[str, Tensor]:
        """Return the mean over the samples of all processes, by parameter, spread as the parameters are."""
        assert self._collector is not None
        means = self._collector.result().values
        return {name: wrap_local(-means[name], parameter) for name, parameter in self.core.runtime.parameters.items()}


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
    plans: Plans = field(default_factory=Plans)
    """The plans by which the model is read, for all passes: its weights stay as they are until all is measured."""

    def in_chunks(self, chunks: Sequence[Sequence[Block]]) -> dict[str, TaskResult]:
        """Measure the layers of each chunk in passes of their own, and all that has no layers in those of the first."""
        core = self.core
        passes = len(chunks) * self._passes
        # A loader is not asked for an iterator to find out: it would draw from the random state.
        if passes > 1 and isinstance(self.batches, Iterator):
            raise BatchError(
                f"The form {core.state.driving.form.name!r} goes through the samples {passes} times, and the batches "
                "given can be gone through once: an iterator, or a generator. Give a DataLoader, or a list of batches."
            )
        if len(chunks) == 1:
            return self.in_passes()
        found = self.in_passes(chunks[0])
        of_driver = found[core.state.driver]
        of_driver.matrices = all_to_storage(core, of_driver.matrices)
        rest = replace(self, sampled={core.state.driver: self.sampled[core.state.driver]}, gradient=None)
        for blocks in chunks[1:]:
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
        classes = self._collect(collectors, self.batches)
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
                matrices,
                lasting,
                samples=first.samples,
                fallback=first.fallback,
                labels=classes.labels,
                outputs=first.outputs,
                tokens=first.tokens,
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
        batches = _Sizes(self.batches)
        classes = self._collect(every, batches)
        if is_first:
            look_at_classes(self.monitors, classes, every)
            if core.state.driver in collectors:
                self._note_rows(collectors[core.state.driver], batches)
        layers = {collectors[name] for name in self.sampled if not core.state.ledgers[name].form.elementwise}
        for collector in every:
            add_up(core.runtime, collector, in_parts=collector not in layers)
        results = core.runtime.measuring_ranks.together(lambda: {collector: collector.result() for collector in every})
        # A rank that had no sample has not met the parameters that no rule covers.
        ways = ranks.each(lambda: [result.fallback for result in results.values()])
        for result, theirs in zip(results.values(), zip(*ways, strict=True), strict=True):
            result.fallback = dict(ChainMap(*theirs))
        return {name: results[collectors[name]] for name in self.sampled}, classes

    def _note_rows(self, collector: SampleAccumulator, batches: "_Sizes") -> None:
        """Note how many rows each layer has seen in a batch of this process, by which the cost of a step is known."""
        sums, samples = collector.sums, collector.samples
        # A row of packed texts holds several samples, and of the last batch a limit may take a few.
        size = max(batches.mean, samples / max(1, len(batches.sizes)))
        for name in {key.removesuffix("/mass") for key in sums if key.endswith("/mass")}:
            # Where a layer was measured by its gradients, the mass is another.
            if samples and not bool(sums[f"{name}/ways"][1]):
                self.core.runtime.rows[name] = float(sums[f"{name}/mass"]) / samples * size

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
                    plans=self.plans,
                )
            found[name] = made[mean]
        return found

    def _collect(self, collectors: list[SampleAccumulator], batches: Iterable[Any]) -> Classes:
        """Give batches to the collectors until there are no more, or enough. Return the labels of all ranks."""
        return collect(self.core.runtime, collectors, batches, self.forward)


class _Sizes:
    """Batches whose sizes are noted as they are read: the rows of the first tensor in each."""

    def __init__(self, batches: Iterable[Any]) -> None:
        self._batches = batches
        self.sizes: list[int] = []

    def __iter__(self) -> Iterator[Any]:
        for batch in self._batches:
            # What a tokenizer returns is a mapping, and no dictionary.
            leaves = tree_leaves(dict(batch) if isinstance(batch, Mapping) else batch)
            self.sizes += [len(leaf) for leaf in leaves if isinstance(leaf, Tensor) and leaf.ndim][:1]
            yield batch

    @property
    def mean(self) -> float:
        """Return the mean size of a batch."""
        return sum(self.sizes) / max(1, len(self.sizes))
