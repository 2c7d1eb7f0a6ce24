"""Consolidators at the same optimiser: the later one's measures would take the earlier one's penalty for the task's."""

import warnings
from collections.abc import Iterable
from weakref import WeakKeyDictionary

from torch.optim import Optimizer
from torch.utils.hooks import RemovableHandle

from holdfast.errors import HoldfastWarning

_holders: WeakKeyDictionary[Optimizer, list[tuple[RemovableHandle, frozenset[int]]]] = WeakKeyDictionary()
"""The hooks that add a penalty's gradient to an optimiser's steps, with the ids of the parameters that each holds."""


def meet(optimizer: Optimizer, hook: RemovableHandle, protected: Iterable[int], *, hold: bool) -> None:
    """Enter a new hook, and warn if one that is still there holds any of the same parameters."""
    mine = frozenset(protected)
    others = [(handle, theirs) for handle, theirs in _holders.get(optimizer, []) if _is_live(handle)]
    if any(mine & theirs for _, theirs in others):
        warnings.warn(
            f"This {type(optimizer).__name__} is attached to another Consolidator, which protects some of the same "
            "parameters: measures here will see its penalty as part of the task's gradient. Call detach() on the other "
            "one, or make a new optimiser; to observe with several measures, give them to one: watch=[...].",
            HoldfastWarning,
            stacklevel=3,
        )
    _holders[optimizer] = [*others, (hook, mine)] if hold else others


def _is_live(handle: RemovableHandle) -> bool:
    hooks = handle.hooks_dict_ref()
    return hooks is not None and handle.id in hooks
