"""What was measured along the path, given away and taken in: by engines that take steps of their own."""

from collections.abc import Collection, Mapping

from anchorhold.errors import ConfigurationError
from anchorhold.guard.ledger import PathRecord
from anchorhold.guard.memory import Memory
from anchorhold.measures import PathMeasure


def path_of(memory: Memory, measures: Collection[str]) -> PathRecord:
    """Return what these measures have gathered in the current task."""
    running = {
        label: {state: dict(tensors) for state, tensors in memory.ledgers[label].running.items()} for label in measures
    }
    return PathRecord(running, dict(memory.start), max(memory.steps.values(), default=0))


def take_path(memory: Memory, measures: Mapping[str, PathMeasure], record: PathRecord) -> None:
    """Go on from what a record says, in the place of what these measures have gathered."""
    _check(memory, measures, record)
    for label in measures:
        ledger = memory.ledgers[label]
        given = record.running.get(label, {})
        ledger.running = {state: dict(given.get(state, {})) for state in ledger.measure.running}
    memory.version += 1
    memory.start = dict(record.start)
    memory.steps = dict.fromkeys(memory.parameters, record.steps) if record.steps else {}


def _check(memory: Memory, measures: Mapping[str, PathMeasure], record: PathRecord) -> None:
    """Refuse a record of other measures, states or shapes, which would count as nothing."""
    if unknown := sorted(set(record.running) - set(measures)):
        raise ConfigurationError(f"path has a measure {unknown[0]!r}; along the path here are {list(measures)}.")
    parameters = memory.parameters
    for label, states in record.running.items():
        expected = list(measures[label].running)
        if unknown := sorted(set(states) - set(expected)):
            raise ConfigurationError(f"path has a state {unknown[0]!r} of {label}; its states are {expected}.")
        for name, tensor in ((n, t) for tensors in states.values() for n, t in tensors.items()):
            if name not in parameters or tensor.shape != parameters[name].shape:
                has = f"one of shape {tuple(parameters[name].shape)}" if name in parameters else "none of that name"
                raise ConfigurationError(
                    f"path has a state of {label} for a parameter {name!r} of shape {tuple(tensor.shape)}; "
                    f"protected here is {has}."
                )
