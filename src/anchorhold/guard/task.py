"""The end of a task: everything about it is found first, while nothing changes, and then comes to hold at once."""

from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from anchorhold.adapters import Change
from anchorhold.errors import NotFiniteError
from anchorhold.forms import Matrix
from anchorhold.guard.anchors import new_anchor, new_linear_term, new_merged_anchor
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
from anchorhold.persample.batches import Forward
from anchorhold.retention.sample_marks import SampleMarks
from anchorhold.seeding import undisturbed
from anchorhold.tensors.finite import is_finite


@dataclass(frozen=True)
class TaskEnd:
    """What is to hold once a task has been taken in; until then it is nowhere else."""

    found: dict[str, TaskResult]
    """What each measure found for the task, by its name."""
    norms: TaskNorms
    """What becomes of batch norms."""
    totals: dict[str, dict[str, Matrix]]
    """Each measure's total with this task in it."""
    strength: float
    anchor: dict[str, Tensor]
    linear_term: dict[str, Tensor]
    merged_anchor: dict[str, Change]

    @classmethod
    def of(cls, core: Core, found: dict[str, TaskResult], norms: TaskNorms) -> "TaskEnd":
        """Return what measures' results lead to, or refuse what is not finite; on all ranks if on one."""
        ranks, driving = core.runtime.ranks, found[core.state.driver]
        # Before anything is gathered, which all take part in.
        ranks.together(lambda: _refuse_weights_not_finite(core.runtime))
        totals = ranks.together(lambda: _new_totals(core, found))
        strength = found_strength(core, driving.matrices, norms.folding.silent)
        anchor = ranks.together(lambda: new_anchor(core, driving, norms.folding))
        linear_term = ranks.together(lambda: new_linear_term(core, driving, anchor))
        return cls(found, norms, totals, strength, anchor, linear_term, new_merged_anchor(core))

    def commit(self, core: Core) -> None:
        """Let all of it hold from now on: nothing here can go wrong any more."""
        for name, total in self.totals.items():
            core.state.ledgers[name].take_in(total, self.found[name].matrices, core.state.decay)
            for state, tensors in self.found[name].lasting.items():
                core.state.ledgers[name].running[state] = tensors
        core.state.strength = self.strength
        core.state.anchor.update(self.anchor)
        core.state.linear_term.update(self.linear_term)
        core.state.merged_anchor.update(self.merged_anchor)
        core.runtime.forget_replaced()
        core.state.frozen_norms, core.state.folded_norms = self.norms.frozen, self.norms.folded
        core.state.left_frozen = frozenset(core.frozen) | _unseen_by_measure(core)
        labels = core.state.labels.union(*(result.labels for result in self.found.values()))
        core.state.labels = labels if labels > core.state.labels else labels | core.task.head.classes
        core.state.is_as_given = core.state.tasks == 0 and not core.is_trained
        core.state.tasks += 1


def end_task(
    core: Core, attachment: Attachment, batches: Iterable[Any] | None, forward: Forward | None, within: int | None
) -> dict[str, TaskImportance]:
    """End a task where the weights are, and return what each measure found for it; all of it, or nothing changes."""
    core.runtime.ranks.together(lambda: refresh_for(core, "consolidate()"))
    refuse_unless_same_run(core, {"within": within})
    norms = norms_of_task(core, batches, forward)
    core.runtime.ranks.together(lambda: check_data_for_holds(core, norms.batches))
    with norms.folding.put_in_place(), core.merged.put_in_place() as called, _marked(core.runtime) as marks:
        found = measure_task(core, attachment.monitors, norms.batches, forward, within)
    for monitor in attachment.monitors if batches is not None else ():
        monitor.at_consolidation(called)
    for result in found.values():
        result.matrices = norms.silenced(result.matrices)
    if core.state.driving.strengths is not None:
        norms.folding.check_strengths(core.state.driving.strengths)
    end = TaskEnd.of(core, found, norms)
    with states_kept(core.options.holds), attachment.watcher.calls.paused():
        data = TaskData(norms.batches, forward)
        end_task_of_holds(core, core.state.anchor | end.anchor, end.totals.get(core.state.driver), data)
    end.commit(core)
    core.state.measured_from.take(marks)
    warn_if_measured_from(core.state, core.state.kept.values())
    attachment.restart_task()
    attachment.keep_statistics()
    if attachment.attached() or core.state.strength:
        attachment.look_out()
    return {name: result.shown() for name, result in found.items()}


@contextmanager
def _marked(runtime: Runtime) -> Iterator[SampleMarks]:
    """Note which samples are measured from, meanwhile."""
    runtime.marking = SampleMarks()
    try:
        yield runtime.marking
    finally:
        runtime.marking = None


def rehearse_end(core: Core, attachment: Attachment, batches: Iterable[Any] | None, forward: Forward | None) -> None:
    """Try the same on two samples, and let everything be as it was."""
    core.runtime.ranks.together(lambda: refresh_for(core, "rehearse()"))
    with undisturbed():  # by the data; measuring keeps the states that the model draws from
        norms = norms_of_task(core, batches, forward)
        core.runtime.ranks.together(lambda: check_data_for_holds(core, norms.batches))
        with norms.folding.put_in_place(), core.merged.put_in_place():
            rehearse_task(core, attachment.monitors, norms.batches, forward)
        with attachment.watcher.calls.paused():
            core.runtime.ranks.together(lambda: rehearse_holds(core, norms.batches, forward))


def found_strength(core: Core, found: dict[str, Matrix], silent: Collection[str]) -> float:
    """Return the strength from now on: with a relative one, what the first importance makes of it."""
    if core.state.relative_strength is None or core.state.strength:
        return core.state.strength
    matrices = core.state.driving.as_held(found)
    relative, parameters = core.state.relative_strength, core.measured
    # The first rank's to the last bit, by which ranks are compared.
    return core.runtime.ranks.each(lambda: strength_from(relative, matrices, parameters, silent))[0]


def _new_totals(core: Core, found: Mapping[str, TaskResult]) -> dict[str, dict[str, Matrix]]:
    """Return the totals with a task's importance taken in, or refuse what is not finite."""
    return {
        name: core.state.ledgers[name].new_total(result.matrices, core.state.decay, core.measured)
        for name, result in found.items()
    }


def _refuse_weights_not_finite(runtime: Runtime) -> None:
    for name, parameter in runtime.parameters.items():
        if not is_finite(parameter):
            raise NotFiniteError(
                f"The weights {name!r} are not finite, so nothing was consolidated; the previous anchor and "
                "importance still hold. Training has diverged: restore an earlier checkpoint."
            )


def _unseen_by_measure(core: Core) -> set[str]:
    """Return the frozen parameters of which a measure along the path, which protects them, has seen no step."""
    if not core.state.driving.measure.needs.path:
        return set()
    return {name for name, p in core.runtime.parameters.items() if not p.requires_grad and name not in core.task.steps}
