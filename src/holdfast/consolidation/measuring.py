"""Asking every measure what it found for a task, without changing anything."""

from collections.abc import Iterable, Mapping
from typing import Any

from holdfast.consolidation.ledger import TaskImportance
from holdfast.consolidation.memory import Memory
from holdfast.consolidation.sampling import measure_samples, rehearse_samples
from holdfast.consolidation.storage import running_dtype
from holdfast.errors import BatchError, OrderError
from holdfast.importance.batches import Forward, check_batches
from holdfast.importance.measures import PathMeasure, SampleMeasure, WeightMeasure


def measure_task(memory: Memory, batches: Iterable[Any] | None, forward: Forward | None) -> dict[str, TaskImportance]:
    """Return what each measure found, by its name; one that only watches and saw no step is left out."""
    sampled = _sampled(memory)
    found = memory.ranks.together(lambda: _measure_without_data(memory))
    if sampled:
        given = memory.ranks.together(lambda: _given(batches, sampled))
        found |= measure_samples(memory, sampled, given, forward)
    return found


def rehearse_task(memory: Memory, batches: Iterable[Any] | None, forward: Forward | None) -> None:
    """Measure with the first samples of the data, if any measure looks at data, and forget what comes out."""
    sampled = _sampled(memory)
    if sampled:
        given = memory.ranks.together(lambda: _given(batches, sampled))
        rehearse_samples(memory, sampled, given, forward)


def _sampled(memory: Memory) -> dict[str, SampleMeasure]:
    """Return the measures that look at data, by name."""
    ledgers = memory.ledgers.items()
    return {name: ledger.measure for name, ledger in ledgers if isinstance(ledger.measure, SampleMeasure)}


def _measure_without_data(memory: Memory) -> dict[str, TaskImportance]:
    """Return what the measures found that look at the path or the weights alone."""
    found: dict[str, TaskImportance] = {}
    for name, ledger in memory.ledgers.items():
        measure = ledger.measure
        if isinstance(measure, PathMeasure):
            if memory.steps:
                found[name] = ledger.task_importance(memory.parameters, memory.start, memory.steps)
            elif name == memory.driver:
                raise OrderError(
                    f"{name} measures along the training path and has seen no step of an attached optimiser since the "
                    "last consolidation. Call attach(optimizer) before training; to protect a model that is already "
                    "trained, use a measure that looks at data, such as Fisher() or MAS()."
                )
        elif isinstance(measure, WeightMeasure):
            importance = {
                key: measure.importance(p.detach().to(running_dtype(p))) for key, p in memory.parameters.items()
            }
            found[name] = TaskImportance(importance)
    return found


def _given(batches: Iterable[Any] | None, sampled: Mapping[str, SampleMeasure]) -> Iterable[Any]:
    """Return the batches, or refuse to go on without them."""
    if batches is None:
        raise BatchError(
            f"{next(iter(sampled))} measures importance from data: call consolidate(batches) with the task's inputs or "
            "(inputs, targets), such as its DataLoader."
        )
    return check_batches(batches)
