"""What users overlook when they attach a guard: a second guard, parameters that nobody trains. Warnings, not errors."""

import warnings
from collections.abc import Collection, Iterable, Sequence
from weakref import WeakKeyDictionary

from torch.optim import Optimizer
from torch.utils.hooks import RemovableHandle

from holdfast.errors import HoldfastWarning
from holdfast.guard.memory import Memory

_CALLER = 3
"""How far the user's call to the guard is from warnings.warn, through a function of this file."""


def warn_of_unowned(memory: Memory, owned: Collection[int]) -> None:
    """Warn of protected parameters that are trainable but that no attached optimiser moves.

    Args:
        memory: what the guard knows.
        owned: the ids of all parameters that attached optimisers train.
    """
    unowned = [name for name, p in memory.parameters.items() if p.requires_grad and id(p) not in owned]
    if unowned:
        warnings.warn(
            f"No attached optimiser trains {_and_others(unowned)}. Give attach() all optimisers at once; freeze what "
            "none trains, or leave it out of protect.",
            HoldfastWarning,
            stacklevel=_CALLER,
        )


def warn_unless_anchored_is_trained(memory: Memory, owned: Collection[int]) -> None:
    """Warn if the penalty acts on nothing that moves, or on less than was consolidated."""
    here = {name: p for name, p in memory.parameters.items() if name in memory.anchor}
    gone = [name for name in memory.anchor if name not in here]
    if not any(id(p) in owned for p in here.values()):  # frozen ones may be thawed yet
        warnings.warn(
            f"The attached optimisers train other parameters than the {len(memory.anchor)} consolidated ones (such as "
            f"{next(iter(memory.anchor))!r}), which are left out, or no longer in the model under their names: as long "
            "as that is so, the penalty holds nothing back. A guard of a base model does not hold an adapter, through "
            "which the network changes all the same: make the guard from the adapted model, after get_peft_model, "
            "with protect='*lora_*', and consolidate it with proxy data.",
            HoldfastWarning,
            stacklevel=_CALLER,
        )
    elif gone:
        warnings.warn(
            f"The model no longer has {_and_others(gone)} under that name, so what was consolidated there is not held. "
            "If a layer was wrapped, make a guard from the model as it is now, and consolidate it with data; if it was "
            "taken away on purpose, call forget(name).",
            HoldfastWarning,
            stacklevel=_CALLER,
        )


def _and_others(names: Sequence[str]) -> str:
    more = len(names) - 1
    return repr(names[0]) + (f" and {more} other protected parameter{'s' if more > 1 else ''}" if more else "")


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
