"""What trainers' callbacks ask of the guard that a user gives: whether it is one, and what it measures with."""

import contextlib
from collections.abc import Iterable, Iterator
from typing import Any

from holdfast.consolidation import Consolidator
from holdfast.errors import BatchError, ConfigurationError
from holdfast.importance.batches import check_batches
from holdfast.importance.measures import SampleMeasure


def checked_guard(given: object) -> Consolidator:
    """Return the guard, or say what was given in its place."""
    if not isinstance(given, Consolidator):
        name = f"the class {given.__name__}" if isinstance(given, type) else f"type {type(given).__name__}"
        raise ConfigurationError(
            f"A guard of {name}; expected a Consolidator: "
            "guard = holdfast.Consolidator(model, holdfast.SOS(), strength=...)."
        )
    return given


def sample_measures(guard: Consolidator) -> dict[str, SampleMeasure]:
    """Return the measures that look at data, by name."""
    return {name: measure for name, measure in guard.measures.items() if isinstance(measure, SampleMeasure)}


def refuse_endless_data(guard: Consolidator, instead: str) -> None:
    """Refuse training data without a length where a measure would go through all of it; ``instead`` says what helps."""
    for name, measure in sample_measures(guard).items():
        if measure.sample_limit is None:
            raise BatchError(
                f"{name} measures with all of the training data, which has no length and may never end. Say how many "
                f"samples to take, as in Fisher(samples=500), {instead}."
            )


def checked_end(given: bool | Iterable[Any]) -> bool | Iterable[Any]:
    """Return what the end of training is to be measured with, or say at once what was given in its place."""
    return given if isinstance(given, bool) else check_batches(given)


@contextlib.contextmanager
def explaining(*notes: str) -> Iterator[None]:
    """Add to an error what a user should know who meets it in a callback."""
    try:
        yield
    except Exception as error:
        for note in notes:
            error.add_note(note)
        raise


TRAINED = (
    "Training itself was over, and the model has its weights; nothing of the guard has changed. To keep them, catch "
    "this error, save the model, and call guard.consolidate(batches) with batches that can be measured with."
)
