"""What becomes of batch norms when a task is consolidated."""

import itertools
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from anchorhold.engine.batches import Forward, check_batches
from anchorhold.errors import BatchError, ConfigurationError, ModelError, warn
from anchorhold.guard.batch_norm.followed_layers import Following, find_following
from anchorhold.guard.batch_norm.frozen_statistics import is_fresh
from anchorhold.guard.core import Core
from anchorhold.guard.distributed.ranks import is_fully_sharded
from anchorhold.spaces import Folded, Space
from anchorhold.tensors.names import named_modules


@dataclass(frozen=True)
class TaskNorms:
    """The batch norms of a task that is about to be consolidated."""

    frozen: frozenset[str]
    """Those whose statistics stay as they are from now on."""
    folded: dict[str, str]
    """Those that are held together with the layer that they follow."""
    space: Space
    """The coordinates in which the task is measured, and held from now on."""
    batches: Iterable[Any] | None
    """The task's batches, of which the first may have been looked at."""


def norms_of_task(core: Core, batches: Iterable[Any] | None, forward: Forward | None) -> TaskNorms:
    """Return what is to be done with batch norms, without changing anything yet."""
    if core.options.batch_norm is None or not core.norms:
        return TaskNorms(frozenset(), {}, core.space, batches)
    if core.options.batch_norm == "freeze":
        return TaskNorms(core.state.frozen_norms | _trained(core), {}, core.space, batches)
    if is_fully_sharded(core.runtime.model):
        raise ConfigurationError(
            "batch_norm='fold' with a sharded model: its layers and its batch norms are split in different places, so "
            "no process has what belongs together. Take batch_norm='freeze'."
        )
    if batches is None:
        raise BatchError(
            "batch_norm='fold' has to see the model called, to know which layer each batch norm follows: call "
            "consolidate(batches) with some of the task's inputs."
        )
    given = check_batches(batches)
    iterator = iter(given)
    first = list(itertools.islice(iterator, 1))
    seen = core.runtime.ranks.each(
        lambda: (
            find_following(core.runtime.model, core.norms, core.runtime.parameters, first[0], forward)
            if first
            else None
        )
    )
    found = next((following for following in seen if following is not None), Following({}, {}, set()))
    folded = _folded(core, found)
    left = (_trained(core) | found.others.keys()) - folded.keys()
    new = left - core.state.frozen_norms - core.runtime.warned.about(_UNFOLDED) - found.unseen
    if new:
        name, others = min(new), f" (and {len(new) - 1} more)" if len(new) > 1 else ""
        warn(_NOT_FOLDED.format(name=name, others=others, reason=found.others.get(name, _OTHERWISE)))
    core.runtime.warned.add(_UNFOLDED, new)
    space = Folded(core.runtime.model, core.runtime.parameters, folded)
    space.agree(core.runtime.ranks.take_first)
    # The first batch has been taken already, and is not drawn a second time.
    begun = itertools.chain(first, iterator)
    again = begun if iterator is given else _Reread(given, begun)
    return TaskNorms(core.state.frozen_norms | left, folded, space, again)


def _trained(core: Core) -> set[str]:
    """Return the batch norms that have statistics of some data."""
    return {name for name, norm in core.norms.items() if not is_fresh(norm)}


def _folded(core: Core, found: Following) -> dict[str, str]:
    """Return which batch norms are folded from now on: those that were, and new ones of layers that are new too."""
    for name, layer in core.state.folded_norms.items():
        if name not in found.unseen and name in core.norms and found.layers.get(name) != layer:
            raise ModelError(
                f"The batch norm {name!r} was consolidated together with {layer!r}, which it followed, and now "
                f"{found.others.get(name, 'it follows another layer')}. Nothing was consolidated. Restore the model, "
                f"or call forget() with the names of their parameters."
            )
    names = {id(parameter): name for name, parameter in core.runtime.parameters.items()}
    modules = dict(named_modules(core.runtime.model))
    held = {
        name
        for name, layer in found.layers.items()
        if names.get(id(getattr(modules[layer], "weight", None))) in core.state.anchor
    }
    new = {name: layer for name, layer in found.layers.items() if name not in held}
    return core.state.folded_norms | {name: layer for name, layer in new.items() if name not in core.state.frozen_norms}


_UNFOLDED = "batch norms that are not folded"
_OTHERWISE = "its layer was consolidated before it, in other coordinates"

_NOT_FOLDED = (
    "The batch norm {name!r}{others} cannot be folded: {reason}. Its running statistics are frozen instead, as "
    "batch_norm='freeze' does, and its scale and shift are held as they are."
)


class _Reread:
    """Batches that can be gone through again, and whose first pass has begun."""

    def __init__(self, batches: Iterable[Any], begun: Iterator[Any]) -> None:
        self._batches = batches
        self._begun: Iterator[Any] | None = begun

    def __iter__(self) -> Iterator[Any]:
        begun, self._begun = self._begun, None
        return iter(self._batches) if begun is None else begun
