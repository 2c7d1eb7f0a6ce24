"""What trainers' callbacks share: checks of the guard that is given, its file in a checkpoint, its line in a log."""

import contextlib
from collections.abc import Iterable, Iterator
from typing import Any, cast

import torch

from holdfast.errors import BatchError, ConfigurationError
from holdfast.guard import Consolidator
from holdfast.guard.distributed.ranks import is_one_of_several
from holdfast.measures import SampleMeasure
from holdfast.persample.batches import check_batches
from holdfast.tensors.sharding import whole_maxima, whole_sums


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
    return {name: cast("SampleMeasure", m) for name, m in guard.measures.items() if m.needs.data}


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


STATE_NAME = "holdfast.safetensors"
"""The file that holds it, beside those of the model and the optimiser."""


def join_processes(guard: Consolidator) -> None:
    """Let a guard measure with all processes of the job, where it was made from the model before it was wrapped.

    Trainers wrap models in DistributedDataParallel by themselves, so the guard cannot tell from the model.
    """
    if guard.group is None and is_one_of_several():
        guard.group = torch.distributed.group.WORLD


def statistics(guard: Consolidator) -> dict[str, float]:
    """Return the penalty, the mean and the largest total importance of a weight (0 at first), and the tasks so far.

    For a sharded model they are those of all its parts, and every process has to ask for them at the same time.
    """
    with torch.no_grad():
        penalty = float(guard.penalty())
    importance = list(guard.importance.values())
    weights = sum(omega.numel() for omega in importance)
    total = sum(map(float, whole_sums([omega.sum(dtype=torch.float32) for omega in importance])))
    return {
        "holdfast/penalty": penalty,
        "holdfast/importance_mean": total / weights if weights else 0.0,
        "holdfast/importance_max": max(map(float, whole_maxima(importance)), default=0.0),
        "holdfast/tasks": float(guard.tasks),
    }
