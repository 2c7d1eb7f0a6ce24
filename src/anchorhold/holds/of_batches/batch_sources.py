"""Where a hold's batches come from: batches that are given, one a step, or a buffer that fills by itself.

Which batch a step gets depends on a seed and the step alone, so that a run that was stopped goes on with the same ones.
"""

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple, Protocol, runtime_checkable

import torch
from torch import Tensor

from anchorhold.engine.batches import check_batches
from anchorhold.errors import BatchError
from anchorhold.seeding import derive_seed, undisturbed


class Drawn(NamedTuple):
    """The batch of a step."""

    batch: Any
    """As a user would give it."""
    task: int = 0
    """Which task its samples are of, counted from 0."""
    outputs: Tensor | None = None
    """What the model made of them when they were kept, where that was."""
    place: int | None = None
    """Which of the batches that were given it is, where they have places."""


@runtime_checkable
class Source(Protocol):
    """What batches are drawn from."""

    def draw(self, size: int, step: int) -> Drawn | None:
        """Return the batch of a step, of so many samples where that can be chosen; ``None`` while there is none."""


class GivenBatches:
    """Batches that are given, again and again, each as it is.

    A list is gone through in an order that is drawn anew each time; what can only be iterated over, such as a
    DataLoader, comes in its own, and begins anew in a run that goes on.
    """

    def __init__(self, batches: Iterable[Any], seed: int = 0) -> None:
        self.batches = check_batches(batches)
        self.seed = seed
        if isinstance(self.batches, Iterator):
            raise BatchError(
                f"Batches of type {type(batches).__name__}, which can be read only once, and a hold reads them again "
                "and again; expected a DataLoader or a list. Give list(batches) if they fit into memory."
            )
        if isinstance(batches, Sequence) and not len(batches):
            raise BatchError("No batches: the list is empty. Give some of what the model is to keep.")
        self._iterator: Iterator[Any] | None = None
        self._order: tuple[int, list[int]] = (-1, [])

    def __len__(self) -> int:
        """Return how many there are, where that is known."""
        return len(self.batches)  # type: ignore[arg-type]

    def draw(self, size: int, step: int) -> Drawn:
        """Return the batch of a step, whatever its size."""
        if not isinstance(self.batches, Sequence):
            with undisturbed():  # a loader that shuffles draws from the states that training draws from
                torch.default_generator.manual_seed(derive_seed(self.seed, "loader", step))
                return Drawn(self._next())
        turn, place = divmod(step, len(self.batches))
        if self._order[0] != turn:
            generator = torch.Generator().manual_seed(derive_seed(self.seed, "order", turn))
            self._order = turn, torch.randperm(len(self.batches), generator=generator).tolist()
        chosen = self._order[1][place]
        return Drawn(self.batches[chosen], place=chosen)

    def __getstate__(self) -> dict[str, Any]:
        """Leave out where a loader is at: a copy begins anew."""
        return {**vars(self), "_iterator": None}

    def _next(self) -> Any:
        for _ in range(2):
            if self._iterator is None:
                self._iterator = iter(self.batches)
            batch = next(self._iterator, None)
            if batch is not None:
                return batch
            self._iterator = None
        raise BatchError(
            f"The {type(self.batches).__name__} given to a hold has no batches. Give some of what the model is to keep."
        )
