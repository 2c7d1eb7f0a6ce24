"""What trainers' callbacks ask of the guard that a user gives: whether it is one, and what it measures with."""

import itertools
from collections.abc import Iterable, Sequence
from typing import Any

import torch

from holdfast.consolidation import Consolidator
from holdfast.errors import BatchError, ConfigurationError
from holdfast.importance.batches import Forward
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


def rehearse(guard: Consolidator, batches: Iterable[Any], forward: Forward | None, instead: str) -> None:
    """Try what the end of training will do with such batches; ``instead`` says what helps."""
    try:
        guard.rehearse(batches, forward=forward)
    except Exception as error:
        error.add_note(f"Holdfast tried, before the first step, what it will do at the end of training. {instead}")
        raise


def first_batch(batches: Iterable[Any]) -> list[Any]:
    """Return a small batch of the data as a list of one, or of none where it cannot be had without using it up.

    A DataLoader is not started: its dataset and what makes batches of it are enough.
    """
    if isinstance(batches, Sequence):
        return list(batches[:1])
    dataset, collate = getattr(batches, "dataset", None), getattr(batches, "collate_fn", None)
    if collate is None or dataset is None or isinstance(dataset, torch.utils.data.IterableDataset):
        return []
    single = getattr(batches, "batch_size", 1) is None and getattr(batches, "batch_sampler", None) is None
    with torch.random.fork_rng(devices=[]):  # augmentation draws from the random state that training goes on with
        try:
            items = list(itertools.islice((dataset[n] for n in range(len(dataset))), 1 if single else 2))
            return [collate(items[0] if single else items)] if items else []
        except Exception:  # noqa: BLE001 (indices may be the sampler's own, and a batch no batch without its others)
            return []
