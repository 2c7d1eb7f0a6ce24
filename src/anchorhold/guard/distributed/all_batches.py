"""The samples of all processes, for each of them to go through."""

from collections.abc import Callable, Iterable, Iterator
from typing import Any

from torch import Tensor
from torch.utils._pytree import tree_leaves, tree_map

from anchorhold.errors import BatchError
from anchorhold.guard.distributed.ranks import Ranks
from anchorhold.tensors.checksums import checksum


class EveryonesBatches:
    """The batches of all processes, the same on each: their first ones in the order of ranks, then the second ones.

    Args:
        batches: this process's own.
        ranks: the processes that see different batches.
        measuring_ranks: those that go through all of them together.
        look: what is done with the first one before it is measured, and may raise.
    """

    def __init__(
        self, batches: Iterable[Any], ranks: Ranks, measuring_ranks: Ranks, look: Callable[[Any], None] | None = None
    ) -> None:
        self.batches = batches
        self.ranks = ranks
        self.measuring_ranks = measuring_ranks
        self._look = look

    def __iter__(self) -> Iterator[Any]:
        own = self.measuring_ranks.together(lambda: iter(self.batches))
        while True:
            found = self.measuring_ranks.together(lambda: [_to_processor(batch) for batch in _next(own)])
            every = [batch for batches in self.ranks.each(lambda: found) for batch in batches]  # noqa: B023 (called here)
            if self.measuring_ranks.size != self.ranks.size:
                self._refuse_different(every)
            if not every:
                return
            if self._look is not None:
                self._look(every[0])
                self._look = None
            yield from every

    def _refuse_different(self, batches: list[Any]) -> None:
        """Refuse batches that are others for another part of the same layers, which would be added up as one's."""
        numbers = self.measuring_ranks.each(
            lambda: checksum(leaf for leaf in tree_leaves(batches) if isinstance(leaf, Tensor))
        )
        if len(set(numbers)) > 1:
            raise BatchError(
                "Processes that have parts of the same layers were given different batches, or other numbers of them; "
                "expected the same on all of them. Give Guard(..., options=GuardOptions(group=)) the processes that "
                "see different ones, and a sampler that is the same for all others."
            )


def _next(batches: Iterator[Any]) -> Iterator[Any]:
    """Yield the next of some batches, if there is one."""
    for batch in batches:
        yield batch
        return


def _to_processor(batch: Any) -> Any:
    return tree_map(lambda leaf: leaf.cpu() if isinstance(leaf, Tensor) else leaf, batch)
