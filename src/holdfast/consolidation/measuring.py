"""Asking every measure what it found for a task, without changing anything."""

from collections.abc import Iterable
from typing import Any

from holdfast.consolidation.ledger import TaskImportance, state_dtype
from holdfast.consolidation.memory import Memory
from holdfast.errors import BatchError, OrderError
from holdfast.importance.batches import Forward, read_batch
from holdfast.importance.measures import PathMeasure, SampleMeasure, WeightMeasure
from holdfast.importance.phi import Phi
from holdfast.importance.scores import Score


def measure_task(memory: Memory, batches: Iterable[Any] | None, forward: Forward | None) -> dict[str, TaskImportance]:
    """Return what each measure found, by its name; one that only watches and saw no step is left out."""
    found: dict[str, TaskImportance] = {}
    sampled: dict[str, SampleMeasure] = {}
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
                key: measure.importance(p.detach().to(state_dtype(p))) for key, p in memory.parameters.items()
            }
            found[name] = TaskImportance(importance)
        elif isinstance(measure, SampleMeasure):
            sampled[name] = measure
    return found | _measure_samples(memory, sampled, batches, forward) if sampled else found


def _measure_samples(
    memory: Memory, sampled: dict[str, SampleMeasure], batches: Iterable[Any] | None, forward: Forward | None
) -> dict[str, TaskImportance]:
    """Give every batch to every measure that looks at data, so that all of them see the same samples."""
    if batches is None:
        raise BatchError(
            f"{next(iter(sampled))} measures importance from data: call consolidate(batches) with the task's inputs or "
            "(inputs, targets), such as its DataLoader."
        )
    device = next(iter(memory.parameters.values())).device
    # Measures that differ only in what they make of the mean, as the Fisher and its root do, share one collector.
    means = {name: _mean_of(measure) for name, measure in sampled.items()}
    collectors = {
        means[name]: measure.accumulator(memory.model, memory.parameters, forward, task=memory.tasks)
        for name, measure in sampled.items()
    }
    for batch in batches:
        read = read_batch(batch, device)
        for collector in collectors.values():
            collector.update(read)
        if all(collector.full for collector in collectors.values()):
            break
    results = {mean: collector.result() for mean, collector in collectors.items()}
    found = {}
    for name, measure in sampled.items():
        result = results[means[name]]
        importance = {key: measure.transform(mean) for key, mean in result.values.items()}
        found[name] = TaskImportance(importance, samples=result.samples, fallback=result.fallback)
    return found


def _mean_of(measure: SampleMeasure) -> tuple[Score, Phi, int | None, int | None]:
    """Return what decides the mean that a measure is made of."""
    return measure.score, measure.phi, measure.sample_limit, measure.draw_seed
