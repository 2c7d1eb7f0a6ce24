"""What was measured along the path, given away and taken in: by engines that take steps of their own."""

from collections.abc import Collection, Mapping

from anchorhold.errors import ConfigurationError
from anchorhold.guard.core import Core, Runtime
from anchorhold.guard.ledger import PathRecord
from anchorhold.measures import PathMeasure


def path_of(core: Core, measures: Collection[str]) -> PathRecord:
    """Return what these measures have gathered in the current task."""
    running = {
        label: {state: dict(tensors) for state, tensors in core.state.ledgers[label].running.items()}
        for label in measures
    }
    return PathRecord(running, dict(core.task.start), max(core.task.steps.values(), default=0))


def take_path(core: Core, measures: Mapping[str, PathMeasure], record: PathRecord) -> None:
    """Go on from what a record says, in the place of what these measures have gathered."""
    _check(core.runtime, measures, record)
    for label in measures:
        ledger = core.state.ledgers[label]
        given = record.running.get(label, {})
        ledger.running = {state: dict(given.get(state, {})) for state in ledger.measure.running}
    core.runtime.version += 1
    core.task.start = dict(record.start)
    core.task.steps = dict.fromkeys(core.runtime.parameters, record.steps) if record.steps else {}


def _check(runtime: Runtime, measures: Mapping[str, PathMeasure], record: PathRecord) -> None:
    """Refuse a record of other measures, states or shapes, which would count as nothing."""
    if unknown := sorted(set(record.running) - set(measures)):
        raise ConfigurationError(f"path has a measure {unknown[0]!r}; along the path here are {list(measures)}.")
    parameters = runtime.parameters
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
