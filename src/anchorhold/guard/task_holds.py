"""The end of a task, as the holds beside the guard's own are told of it; in one process or in several."""

import contextlib
import itertools
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor

from anchorhold.engine.batches import Forward, check_batches
from anchorhold.errors import BatchError
from anchorhold.forms import Matrix
from anchorhold.guard.core import Core, Runtime
from anchorhold.guard.distributed.ranks import Ranks
from anchorhold.holds import Held, Hold
from anchorhold.holds.base import TaskData
from anchorhold.seeding import undisturbed
from anchorhold.tensors.sharding import sharded_among


def check_data_for_holds(core: Core, batches: Iterable[Any] | None) -> None:
    """Refuse data that a hold is to look at, if there are none, or if others read them too and they come only once."""
    taking = [f"the hold {hold.name!r}" for hold in core.options.holds if hold.takes_batches]
    if not taking:
        return
    if batches is None:
        raise BatchError(
            f"{taking[0][0].upper()}{taking[0][1:]} looks at each task's data, and was given none: call "
            "consolidate(batches) with the data that the task was trained on."
        )
    readers = [name for name, ledger in core.state.ledgers.items() if ledger.measure.needs.data]
    readers += ["the gradient term"] * core.options.gradient_term
    # A loader is not asked for an iterator to find out: it would draw from the random state.
    if len(taking) + len(readers) > 1 and isinstance(check_batches(batches), Iterator):
        raise BatchError(
            f"Batches of type {type(batches).__name__}, which can be read only once, and "
            f"{', '.join([*readers, *taking])} each read them. Give a DataLoader, or a list of batches."
        )


def rehearse_holds(core: Core, batches: Iterable[Any] | None, forward: Forward | None) -> None:
    """Let holds that look at a task's data take in a first batch, and pull by it, and be as they were."""
    taking = [hold for hold in core.options.holds if hold.takes_batches]
    if not taking:
        return
    few = list(itertools.islice(check_batches(batches), 1))
    held = core.held(core.runtime.parameters, data=TaskData(few, forward))
    with contextlib.ExitStack() as stack:
        for hold in taking:
            stack.callback(hold.roll_back, hold.snapshot())
        for hold in taking:
            hold.end_task(held._replace(sums=hold.task_sums(held)))
        if not sharded_among(core.runtime.model.parameters()):  # all processes would have to run it together
            for hold in taking:
                hold.value(held._replace(tasks=core.state.tasks + 1))


def end_task_of_holds(
    core: Core, anchor: Mapping[str, Tensor], total: Mapping[str, Matrix] | None, data: TaskData
) -> None:
    """Let holds take the task in, after which they know the same on all ranks; raises on all if it does on one."""
    importance = None if total is None else core.state.driving.as_held(dict(total))
    for hold in core.options.holds:
        given = data if hold.takes_batches else data._replace(batches=None)
        _tell(core.runtime, hold, core.held(core.runtime.parameters, anchor, importance, data=given))


def _tell(runtime: Runtime, hold: Hold, held: Held) -> None:
    ranks = runtime.ranks
    with undisturbed():  # by loaders that shuffle
        own = ranks.together(lambda: hold.task_sums(held))
        sums = _added_up(ranks, own)
        ranks.together(lambda: hold.end_task(held._replace(sums=sums)))
    if sums and ranks.size > 1:
        hold.load_state(ranks.from_first(hold.state))
    for message in hold.notices():
        runtime.warned.once("hold", message, about=message)


def _added_up(ranks: Ranks, own: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return the sums of all ranks' tensors; one that a rank does not have is 0 there."""
    if ranks.size == 1:
        return dict(own)
    every = ranks.each(lambda: {name: (t.shape, t.dtype, str(t.device.type)) for name, t in own.items()})
    known = {name: about for rank in every for name, about in rank.items()}
    found = {}
    for name in sorted(known):
        shape, dtype, device = known[name]
        mine = own[name] if name in own else torch.zeros(shape, dtype=dtype, device=device)
        found[name] = ranks.add_up(mine)
    return found
