"""The end of a task: everything about it is found first, while nothing changes, and then comes to hold at once."""

from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from anchorhold.adapters import Change
from anchorhold.engine.batches import Forward
from anchorhold.errors import NotFiniteError
from anchorhold.forms import Matrix
from anchorhold.guard.arguments.strengths import strength_from
from anchorhold.guard.batch_norm.at_consolidation import TaskNorms, norms_of_task
from anchorhold.guard.centre.anchors import new_anchor, new_merged_anchor, new_tilt
from anchorhold.guard.consolidating.ending_tasks import check_data_for_holds, rehearse_holds, tell_holds
from anchorhold.guard.consolidating.measuring import Finding, measure_task, rehearse_task
from anchorhold.guard.distributed.same_run import refuse_unless_same_run
from anchorhold.guard.keeping.taking_inputs import tell_if_measured_from
from anchorhold.guard.ledger import TaskImportance
from anchorhold.guard.memory import Memory
from anchorhold.guard.noticing.protection import warn_of_uncalled_adapters
from anchorhold.guard.refreshing import refresh_for
from anchorhold.guard.steps.attachment import Attachment
from anchorhold.holds.base import TaskData, states_kept
from anchorhold.retention.sample_marks import SampleMarks
from anchorhold.seeding import undisturbed
from anchorhold.tensors.finite import is_finite


@dataclass(frozen=True)
class TaskEnd:
    """What is to hold once a task has been taken in; until then it is nowhere else."""

    found: dict[str, Finding]
    """What each measure found for the task, by its name."""
    norms: TaskNorms
    """What becomes of batch norms."""
    totals: dict[str, dict[str, Matrix]]
    """Each measure's total with this task in it."""
    strength: float
    anchor: dict[str, Tensor]
    tilt: dict[str, Tensor]
    merged_anchor: dict[str, Change]

    @classmethod
    def of(cls, memory: Memory, found: dict[str, Finding], norms: TaskNorms) -> "TaskEnd":
        """Return what measures' findings lead to, or refuse what is not finite; on all ranks if on one."""
        ranks, driving = memory.ranks, found[memory.driver]
        # Before anything is gathered, which all take part in.
        ranks.together(lambda: _refuse_weights_not_finite(memory))
        totals = ranks.together(lambda: _new_totals(memory, found))
        strength = found_strength(memory, driving.matrices, norms.folding.silent)
        anchor = ranks.together(lambda: new_anchor(memory, driving, norms.folding))
        tilt = ranks.together(lambda: new_tilt(memory, driving, anchor))
        return cls(found, norms, totals, strength, anchor, tilt, new_merged_anchor(memory))

    def settle(self, memory: Memory) -> None:
        """Let all of it hold from now on: nothing here can go wrong any more."""
        for name, total in self.totals.items():
            memory.ledgers[name].take_in(total, self.found[name].matrices, memory.decay)
            for state, tensors in self.found[name].lasting.items():
                memory.ledgers[name].running[state] = tensors
        memory.strength = self.strength
        memory.anchor.update(self.anchor)
        memory.tilt.update(self.tilt)
        memory.merged_anchor.update(self.merged_anchor)
        memory.replaced = memory.told_of = memory.told_gone = frozenset()
        memory.frozen_norms, memory.folded_norms = self.norms.frozen, self.norms.folded
        memory.left_frozen = frozenset(memory.frozen) | _unseen_by_measure(memory)
        labels = memory.labels.union(*(finding.labels for finding in self.found.values()))
        memory.labels = labels if labels > memory.labels else labels | memory.head.classes
        memory.is_as_given = memory.tasks == 0 and not memory.is_trained
        memory.tasks += 1


def end_task(
    memory: Memory, attachment: Attachment, batches: Iterable[Any] | None, forward: Forward | None, within: int | None
) -> dict[str, TaskImportance]:
    """End a task where the weights are, and return what each measure found for it; all of it, or nothing changes."""
    memory.ranks.together(lambda: refresh_for(memory, "consolidate()"))
    refuse_unless_same_run(memory, {"within": within})
    norms = norms_of_task(memory, batches, forward)
    memory.ranks.together(lambda: check_data_for_holds(memory, norms.batches))
    with norms.folding.put_in_place(), memory.merged.put_in_place() as called, _marked(memory) as marks:
        found = measure_task(memory, norms.batches, forward, within)
    if batches is not None:
        warn_of_uncalled_adapters(memory, called)
    for finding in found.values():
        finding.matrices = norms.silenced(finding.matrices)
    if memory.driving.strengths is not None:
        norms.folding.check_strengths(memory.driving.strengths)
    end = TaskEnd.of(memory, found, norms)
    with states_kept(memory.holds), attachment.watcher.calls.paused():
        data = TaskData(norms.batches, forward)
        tell_holds(memory, memory.anchor | end.anchor, end.totals.get(memory.driver), data)
    end.settle(memory)
    memory.measured_from.take(marks)
    tell_if_measured_from(memory, memory.kept.values())
    attachment.restart_task()
    attachment.settle_norms()
    if attachment.attached() or memory.strength:
        attachment.look_out()
    return {name: finding.shown() for name, finding in found.items()}


@contextmanager
def _marked(memory: Memory) -> Iterator[SampleMarks]:
    """Note which samples are measured from, meanwhile."""
    memory.marking = SampleMarks()
    try:
        yield memory.marking
    finally:
        memory.marking = None


def rehearse_end(
    memory: Memory, attachment: Attachment, batches: Iterable[Any] | None, forward: Forward | None
) -> None:
    """Try the same on two samples, and let everything be as it was."""
    memory.ranks.together(lambda: refresh_for(memory, "rehearse()"))
    with undisturbed():  # by the data; measuring keeps the states that the model draws from
        norms = norms_of_task(memory, batches, forward)
        memory.ranks.together(lambda: check_data_for_holds(memory, norms.batches))
        with norms.folding.put_in_place(), memory.merged.put_in_place():
            rehearse_task(memory, norms.batches, forward)
        with attachment.watcher.calls.paused():
            memory.ranks.together(lambda: rehearse_holds(memory, norms.batches, forward))


def found_strength(memory: Memory, found: dict[str, Matrix], silent: Collection[str]) -> float:
    """Return the strength from now on: with a relative one, what the first importance makes of it."""
    if memory.relative_strength is None or memory.strength:
        return memory.strength
    matrices = memory.driving.as_held(found)
    relative, parameters = memory.relative_strength, memory.measured
    # The first rank's to the last bit, by which ranks are compared.
    return memory.ranks.each(lambda: strength_from(relative, matrices, parameters, silent))[0]


def _new_totals(memory: Memory, found: Mapping[str, Finding]) -> dict[str, dict[str, Matrix]]:
    """Return the totals with a task's importance taken in, or refuse what is not finite."""
    return {
        name: memory.ledgers[name].new_total(finding.matrices, memory.decay, memory.measured)
        for name, finding in found.items()
    }


def _refuse_weights_not_finite(memory: Memory) -> None:
    for name, parameter in memory.parameters.items():
        if not is_finite(parameter):
            raise NotFiniteError(
                f"The weights {name!r} are not finite, so nothing was consolidated; the previous anchor and "
                "importance still hold. Training has diverged: restore an earlier checkpoint."
            )


def _unseen_by_measure(memory: Memory) -> set[str]:
    """Return the frozen parameters of which a measure along the path, which protects them, has seen no step."""
    if not memory.driving.measure.needs.path:
        return set()
    return {name for name, p in memory.parameters.items() if not p.requires_grad and name not in memory.steps}
