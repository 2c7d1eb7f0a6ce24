"""The end of a task, from top to bottom: all of it is found while nothing changes, and then holds at once.

A task's importance joins the total, Σ ← γΣ + ω, and the weights of now become the anchor θ*.
"""

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from anchorhold.adapters import Change, in_parts
from anchorhold.engine.batches import Forward
from anchorhold.errors import NotFiniteError, OrderError, warn
from anchorhold.forms import Matrix
from anchorhold.guard.anchors import new_anchor, new_linear_term, new_merged_anchor
from anchorhold.guard.arguments.fitting_strengths import check_coupled
from anchorhold.guard.arguments.strengths import strength_of_rate, total_trace
from anchorhold.guard.batch_norm.at_consolidation import TaskNorms, norms_of_task
from anchorhold.guard.core import Core, GuardState, Measured, Runtime
from anchorhold.guard.ledger import TaskImportance
from anchorhold.guard.measurement import TaskResult, measure_task, rehearse_task
from anchorhold.guard.monitor import overriding
from anchorhold.guard.refreshing import refresh_for
from anchorhold.guard.retention.keep_inputs import warn_if_measured_from
from anchorhold.guard.rollback.averaging import has_moved
from anchorhold.guard.stepping.attachment import Attachment
from anchorhold.guard.task_holds import check_data_for_holds, end_task_of_holds, rehearse_holds
from anchorhold.holds.base import TaskData, states_kept
from anchorhold.measures import FineTune
from anchorhold.retention.kept_set import SampleMarks
from anchorhold.seeding import undisturbed
from anchorhold.settings import written
from anchorhold.tensors.sharding import is_finite, is_sharded
from anchorhold.tensors.summaries import checksum


def end_task(
    core: Core, attachment: Attachment, batches: Iterable[Any] | None, forward: Forward | None, within: int | None
) -> dict[str, TaskImportance]:
    """End a task where the weights are, and return what each measure found for it.

    If anything raises, nothing has changed; of several processes, it raises on all.

    Args:
        core: what the guard is made of.
        attachment: the optimizers that trained the task.
        batches: the task's data, for measures and holds that look at it.
        forward: how the model is called.
        within: bytes that sums over samples may take.
    """
    state, ranks, monitors = core.state, core.runtime.ranks, attachment.monitors
    # The model as it is now, and the same run on all ranks.
    ranks.together(lambda: refresh_for(core, "consolidate()"))
    refuse_unless_same_run(core, {"within": within})
    norms = norms_of_task(core, batches, forward)
    ranks.together(lambda: check_data_for_holds(core, norms.batches))

    # ω of every measure, with the space's coordinates in place of the model's own weights.
    with norms.space.put_in_place() as called, _marked(core.runtime) as marks:
        results = measure_task(core, monitors, norms.batches, forward, within)
    for monitor in overriding(monitors, "at_consolidation") if batches is not None else ():
        monitor.at_consolidation(called)
    for result in results.values():
        result.matrices = norms.space.silenced(result.matrices)
    of_driver = results[state.driver]
    tokens = ranks.together(lambda: bring_to_tokens_of_total(state, of_driver))
    if state.driving.strengths is not None:
        check_coupled(norms.space, state.driving.strengths)
    seen = Measured(state.tasks + 1, forward, total_trace(of_driver.matrices))
    ranks.together(lambda: _warn_if_counted_twice(core, marks, seen))

    # Totals, anchor and linear term. Weights are looked at before anything is gathered from all ranks.
    ranks.together(lambda: _check_weights(core.runtime))
    totals = ranks.together(
        lambda: {
            name: state.ledgers[name].new_total(result.matrices, state.decay, core.measured, state.tasks)
            for name, result in results.items()
        }
    )
    anchor = ranks.together(lambda: new_anchor(core, of_driver, norms.space))
    linear_term = ranks.together(lambda: new_linear_term(core, of_driver, anchor))
    merged_anchor = new_merged_anchor(core)

    # Further holds; they go back to what they were if one of them raises.
    with states_kept(core.options.holds), attachment.watcher.calls.paused():
        data = TaskData(norms.batches, forward)
        end_task_of_holds(core, state.anchor | anchor, totals.get(state.driver), data)

    # From here on nothing can go wrong.
    core.runtime.last_measured = seen
    TaskEnd(results, norms, totals, tokens, anchor, linear_term, merged_anchor).commit(core)
    state.measured_from.take(marks)
    warn_if_measured_from(state, state.kept.values())
    attachment.restart_task()
    attachment.keep_statistics()
    if attachment.attached() or state.strength:
        attachment.begin_watching()
    return {name: result.shown() for name, result in results.items()}


@dataclass(frozen=True)
class TaskEnd:
    """What is to hold once a task has been taken in; until then it is nowhere else."""

    results: dict[str, TaskResult]
    """What each measure found for the task, by its name."""
    norms: TaskNorms
    """What becomes of batch norms."""
    totals: dict[str, dict[str, Matrix]]
    """Each measure's total with this task in it."""
    tokens: float | None
    """T, as the task's importance counts in the total."""
    anchor: dict[str, Tensor]
    linear_term: dict[str, Tensor]
    merged_anchor: dict[str, Change]

    def commit(self, core: Core) -> None:
        """Let all of it hold from now on."""
        state = core.state
        is_first = not state.driving.added_to
        for name, total in self.totals.items():
            state.ledgers[name].take_in(total, self.results[name].matrices, state.decay)
            state.ledgers[name].running |= self.results[name].lasting
        state.anchor.update(self.anchor)
        state.linear_term.update(self.linear_term)
        state.merged_anchor.update(self.merged_anchor)
        core.runtime.forget_replaced()
        state.frozen_norms, state.folded_norms = self.norms.frozen, self.norms.folded
        state.left_frozen = frozenset(core.frozen)
        if state.driving.measure.needs.path:  # which has seen no step of a parameter that was frozen all along
            parameters, steps = core.runtime.parameters, core.task.steps
            state.left_frozen |= {n for n, p in parameters.items() if not p.requires_grad and n not in steps}
        labels = state.labels.union(*(result.labels for result in self.results.values()))
        state.labels = labels if labels > state.labels else labels | core.task.head.classes
        state.is_as_given = state.tasks == 0 and not core.is_trained
        state.tasks += 1
        if self.tokens is not None:
            # Where nothing is left of earlier tasks, their T counts no more.
            state.tokens = [self.tokens] * state.tasks if is_first else [*state.tokens, self.tokens]
        state.strength = found_strength(state)


def rehearse_end(core: Core, attachment: Attachment, batches: Iterable[Any] | None, forward: Forward | None) -> None:
    """Try the same on two samples, and leave guard, model and random states as they were."""
    ranks = core.runtime.ranks
    ranks.together(lambda: refresh_for(core, "rehearse()"))
    with undisturbed():  # by the data; measuring keeps the states that the model draws from
        norms = norms_of_task(core, batches, forward)
        ranks.together(lambda: check_data_for_holds(core, norms.batches))
        with norms.space.put_in_place():
            rehearse_task(core, attachment.monitors, norms.batches, forward)
        with attachment.watcher.calls.paused():
            ranks.together(lambda: rehearse_holds(core, norms.batches, forward))


def bring_to_tokens_of_total(state: GuardState, found: TaskResult) -> float | None:
    """Let a task's importance count as if its samples were as long as the total's, and return T as it counts.

    One c holds all tasks, and c⟨D, Q_k(D)⟩ is κ times the nats that are lost of a token of task k only if c is
    κ/(2T_k). So with an exchange rate Q_k joins the total as Q_k·T/T_k, which makes a token of every task count the
    same. With a strength, importances are added as they are.
    """
    if state.exchange_rate is None:
        return found.tokens
    if found.tokens is None:
        raise OrderError(
            f"exchange_rate={state.exchange_rate:g}, and it is not known how many tokens were scored: what "
            "gradients.microbatches() has seen is partly from a state of version 0.1.0, which did not count them. Call "
            "gradients.restart_task() and it again, or set guard.strength."
        )
    together = state.tokens_of_all
    if together is None or together == found.tokens or not state.driving.added_to:
        return found.tokens
    factor = together / found.tokens
    found.matrices = {name: matrix.scale(factor) for name, matrix in found.matrices.items()}
    found.gradient = {name: gradient * factor for name, gradient in found.gradient.items()}
    return together


def found_strength(state: GuardState) -> float:
    """Return the strength from now on: with an exchange rate κ, κ/(2T) once T is known."""
    tokens = state.tokens_of_all
    if state.exchange_rate is None or tokens is None:
        return state.strength
    return strength_of_rate(state.exchange_rate, tokens)


def _warn_if_counted_twice(core: Core, marks: SampleMarks, seen: Measured) -> None:
    """Say so if importance that is added up was measured again, from the same inputs of the same model."""
    state, measure, before = core.state, core.state.driving.measure, core.runtime.last_measured
    if core.task.steps or not state.driving.added_to or measure.total != "add" or isinstance(measure, FineTune):
        return
    then, now = state.measured_from.tasks[-1], marks.tasks[-1]
    if measure.needs.data and (not before.is_same(seen) or not now or 2 * len(then & now) < len(now)):
        return  # other samples, or another head, add what they tell of the same model
    here = core.space.coordinates(core.runtime.parameters)
    if here.keys() - state.anchor.keys() or has_moved(state, here):
        return  # or something has come that was not there
    warn(
        "consolidate() again, without a step since the last time"
        + (", from the same inputs" if now else "")
        + ": the same importance is added to the total once more. If that is not meant, call it once a task; what "
        "further samples tell of the same weights comes with those samples."
    )


def _check_weights(runtime: Runtime) -> None:
    """Raise :class:`NotFiniteError` if protected weights are not finite."""
    for name, parameter in runtime.parameters.items():
        if not is_finite(parameter):
            raise NotFiniteError(
                f"The weights {name!r} are not finite, so nothing was consolidated; the previous anchor and "
                "importance still hold. Training has diverged: restore an earlier checkpoint."
            )


@contextmanager
def _marked(runtime: Runtime) -> Iterator[SampleMarks]:
    """Note which samples are measured from, to compare with those that are kept."""
    runtime.marking = SampleMarks()
    try:
        yield runtime.marking
    finally:
        runtime.marking = None


def refuse_unless_same_run(core: Core, asked: Mapping[str, object]) -> None:
    """Raise on every rank unless all of them are at the same place of the same run, and are asked for the same.

    What differs is named: a setting, a count of steps, or the parameter whose weights or importance are not the same.
    """
    if core.runtime.ranks.size == 1:
        return
    facts: dict[str, object] = {
        "the number of consolidated tasks": core.state.tasks,
        "the measures": core.state.settings,
        "the measure that drives the penalty": core.state.driver,
        "its form": (type(core.state.driving.form).__name__, written(core.state.driving.form)),
        "the protected parameters": {name: tuple(p.shape) for name, p in core.runtime.parameters.items()},
        "the steps of this task": core.task.steps,
        "the strength and the decay": (core.state.strength, core.state.decay),
        "the strength as it was given": core.state.strength_text,
        "the exchange rate and the tokens of a sample": (core.state.exchange_rate, core.state.tokens),
        "where the hold is centred": (core.options.anchor_kind, core.options.gradient_term),
        "whether the hold is implicit": core.state.implicit.value,
        "after how many steps it acts": core.state.pull_every.value,
        "the space": core.state.space.value,
        "the tolerance": None if core.state.tolerance is None else core.state.tolerance.nats,
        "the kept sets": list(core.state.kept),
        "the holds": {hold.name: (hold.strength, hold.share, hold.settings()) for hold in core.options.holds},
        **asked,
    }
    totals: dict[str, list[Tensor]] = {}
    for ledger in core.state.ledgers.values():
        for matrix in ledger.total.values():
            totals.setdefault(matrix.block.parameters[0], []).extend(matrix.state().values())
    for name, change in core.state.merged_anchor.items():
        kept = [*in_parts(change).values(), *totals.get(name, ())]
        facts[f"what is known about the merged {name!r} (by checksum)"] = checksum(kept)
    # Each rank has its own part of a sharded tensor; all others are copies.
    for name, parameter in core.runtime.parameters.items():
        if not is_sharded(parameter):
            every = (core.state.anchor, core.state.linear_term, core.task.start, *core.state.running())
            kept = [tensors[name] for tensors in every if name in tensors]
            facts[f"the weights {name!r} (by checksum)"] = checksum([parameter])
            facts[f"what is known about {name!r} (by checksum)"] = checksum([*kept, *totals.get(name, ())])
    core.runtime.ranks.refuse_unless_equal(facts)
