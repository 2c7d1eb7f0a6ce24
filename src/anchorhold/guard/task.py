"""The end of a task, from top to bottom: all of it is found while nothing changes, and then holds at once.

A task's importance joins the total, Σ ← γΣ + ω, and the weights of now become the anchor θ*.
"""

from collections.abc import Collection, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from anchorhold.adapters import Change
from anchorhold.engine.batches import Forward
from anchorhold.errors import NotFiniteError
from anchorhold.forms import Matrix
from anchorhold.guard.anchors import new_anchor, new_linear_term, new_merged_anchor
from anchorhold.guard.arguments.fitting_strengths import check_coupled
from anchorhold.guard.arguments.strengths import strength_from
from anchorhold.guard.batch_norm.at_consolidation import TaskNorms, norms_of_task
from anchorhold.guard.core import Core, Runtime
from anchorhold.guard.distributed.same_run import refuse_unless_same_run
from anchorhold.guard.ledger import TaskImportance
from anchorhold.guard.measurement import TaskResult, measure_task, rehearse_task
from anchorhold.guard.refreshing import refresh_for
from anchorhold.guard.retention.keep_inputs import warn_if_measured_from
from anchorhold.guard.stepping.attachment import Attachment
from anchorhold.guard.task_holds import check_data_for_holds, end_task_of_holds, rehearse_holds
from anchorhold.holds.base import TaskData, states_kept
from anchorhold.retention.sample_marks import SampleMarks
from anchorhold.seeding import undisturbed
from anchorhold.tensors.finite import is_finite


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
    for monitor in monitors if batches is not None else ():
        monitor.at_consolidation(called)
    for result in results.values():
        result.matrices = norms.space.silenced(result.matrices)
    if state.driving.strengths is not None:
        check_coupled(norms.space, state.driving.strengths)

    # Totals, strength, anchor and linear term. Weights are looked at before anything is gathered from all ranks.
    of_driver = results[state.driver]
    ranks.together(lambda: _check_weights(core.runtime))
    totals = ranks.together(
        lambda: {
            name: state.ledgers[name].new_total(result.matrices, state.decay, core.measured)
            for name, result in results.items()
        }
    )
    strength = found_strength(core, of_driver.matrices, norms.space.silent)
    anchor = ranks.together(lambda: new_anchor(core, of_driver, norms.space))
    linear_term = ranks.together(lambda: new_linear_term(core, of_driver, anchor))
    merged_anchor = new_merged_anchor(core)

    # Further holds; they go back to what they were if one of them raises.
    with states_kept(core.options.holds), attachment.watcher.calls.paused():
        data = TaskData(norms.batches, forward)
        end_task_of_holds(core, state.anchor | anchor, totals.get(state.driver), data)

    # From here on nothing can go wrong.
    TaskEnd(results, norms, totals, strength, anchor, linear_term, merged_anchor).commit(core)
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
    strength: float
    anchor: dict[str, Tensor]
    linear_term: dict[str, Tensor]
    merged_anchor: dict[str, Change]

    def commit(self, core: Core) -> None:
        """Let all of it hold from now on."""
        state = core.state
        for name, total in self.totals.items():
            state.ledgers[name].take_in(total, self.results[name].matrices, state.decay)
            state.ledgers[name].running |= self.results[name].lasting
        state.strength = self.strength
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


def found_strength(core: Core, found: dict[str, Matrix], silent: Collection[str]) -> float:
    """Return the strength from now on: with a relative one, what the first importance makes of it."""
    if core.state.relative_strength is None or core.state.strength:
        return core.state.strength
    matrices = core.state.driving.as_held(found)
    relative, parameters = core.state.relative_strength, core.measured
    # The first rank's to the last bit, by which ranks are compared.
    return core.runtime.ranks.each(lambda: strength_from(relative, matrices, parameters, silent))[0]


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
