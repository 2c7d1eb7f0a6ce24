"""The first samples of a DataLoader, read beside it: its pass, its workers and its random numbers stay as they are."""

import contextlib
import copy
import random
from collections.abc import Callable, Iterator, Sequence, Sized
from typing import Any, cast

import numpy as np
import torch
from torch.utils.data import DataLoader, IterableDataset

from anchorhold.errors import BatchError
from anchorhold.seeding import undisturbed


def first_batches(loader: Any, count: int) -> list[Any]:
    """Return a batch of a loader's first samples, collated as it collates them; none where that cannot be done.

    It is as large as the loader's own, and has ``count`` samples at least: a few would tell less of what they are.

    What cannot be read in this way says nothing about what training reads: a stream, a collator that wants more
    samples at a time, a sampler with indices of its own. Where the loader has workers, another one reads the samples: a
    data set that opens its files when it is first read must not do so here, since workers that are forked later would
    share them.
    """
    if not isinstance(loader, DataLoader) or isinstance(loader.dataset, IterableDataset):
        return []
    batched = loader.batch_sampler is not None
    try:
        usual = getattr(loader.batch_sampler, "batch_size", None) or count
        places = range(min(max(count, usual), len(cast("Sized", loader.dataset))) if batched else 1)
        return _read(loader, places, len(places))
    except Exception:  # noqa: BLE001 (whatever a data set or a collator says that cannot do with these)
        return []


def spread_batches(loader: Any, count: int) -> list[Any]:
    """Return about as many samples of a loader, evenly spread over its data, in batches of the loader's own size.

    Raise BatchError, with the reason, where they cannot be read beside it.
    """
    if not isinstance(loader, DataLoader):
        raise BatchError(f"{type(loader).__name__} is no DataLoader, whose samples could be read beside it.")
    if isinstance(loader.dataset, IterableDataset):
        raise BatchError(f"{type(loader.dataset).__name__} is a stream, which is read only once.")
    try:
        every = len(cast("Sized", loader.dataset))
        usual = getattr(loader.batch_sampler, "batch_size", None) or 1
        # Where batches are in the data set as they are, each is a place.
        wanted = min(every, count if loader.batch_sampler is not None else max(1, count // 8))
        return _read(loader, [number * every // wanted for number in range(wanted)], usual)
    except Exception as error:
        raise BatchError(f"{type(error).__name__}: {error}") from error


def _read(loader: "DataLoader[Any]", places: Sequence[int], size: int) -> list[Any]:
    """Return batches of some samples, read beside the loader."""
    batched = loader.batch_sampler is not None
    reader: DataLoader[Any] = DataLoader(
        loader.dataset,
        sampler=list(places),
        batch_size=size if batched else None,
        collate_fn=_Collator(loader.collate_fn),
        num_workers=min(1, loader.num_workers),
        worker_init_fn=loader.worker_init_fn,
        multiprocessing_context=loader.multiprocessing_context,
    )
    with undisturbed(), _generators_kept(loader.collate_fn):
        return list(reader)


class _Collator:
    """Collates copies: a collator may take samples to pieces that training still has to read."""

    def __init__(self, collate: Callable[[Any], Any]) -> None:
        self._collate = collate

    def __call__(self, samples: Any) -> Any:
        return self._collate(copy.deepcopy(samples))


@contextlib.contextmanager
def _generators_kept(collator: object) -> Iterator[None]:
    """Put back the random generators that a collator, or one inside it, keeps for itself."""
    held = _held(getattr(collator, "__self__", collator))
    held += [value for inner in held for value in _held(inner)]
    torchs = [(value, value.get_state()) for value in held if isinstance(value, torch.Generator)]
    numpys = [(value, value.bit_generator.state) for value in held if isinstance(value, np.random.Generator)]
    pythons = [(value, value.getstate()) for value in held if isinstance(value, random.Random)]
    try:
        yield
    finally:
        for of_torch, state in torchs:
            of_torch.set_state(state)
        for of_numpy, numpy_state in numpys:
            of_numpy.bit_generator.state = numpy_state
        for of_python, python_state in pythons:
            of_python.setstate(python_state)


def _held(thing: object) -> list[Any]:
    return list(getattr(thing, "__dict__", {}).values())
