"""Noticing LoRA's two factors among the tensors of a state dict, where each would be merged by itself.

A module with adapters is taken as the weights that it stands for, and so is the folder of an adapter. A state dict does
not say by what the product is multiplied, so all that can be done is to say so.
"""

import re
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

_A = re.compile(r"(?P<layer>.*\.)?(?P<kind>lora_(embedding_)?)A(?P<adapter>\..+)?")


def lone_factors(names: Sequence[str], read: Sequence[Callable[[str], Tensor]]) -> list[tuple[str, str]]:
    """Return A and B, by name, of each pair that both differ: where one alone does, their means are exact.

    Args:
        names: of the tensors that are merged.
        read: of each model, what returns its tensor of a name.
    """
    known = set(names)
    found = []
    for name in names:
        if match := _A.fullmatch(name):
            other = f"{match['layer'] or ''}{match['kind']}B{match['adapter'] or ''}"
            if other in known and _differs(name, read) and _differs(other, read):
                found.append((name, other))
    return found


def said_of(pairs: Sequence[tuple[str, str]]) -> str:
    """Say what becomes of such factors, and what to do."""
    (a, b), more = pairs[0], len(pairs) - 1
    others = f" and {more} other pair{'s' if more > 1 else ''}" if more else ""
    return (
        f"{a!r} and {b!r}{others} are the factors of LoRA adapters, and each is merged by itself: the product of two "
        "means is not the mean of what the adapters add to the weights. Merge them into the weights first "
        "(merge_and_unload), or give the models, or the folders that the adapters were saved to, in the place of state "
        "dicts: those are taken as the weights that they stand for. To have an adapter again, use "
        "anchorhold.merging.merge_adapters, or guard.average(share) after training."
    )


def _differs(name: str, read: Sequence[Callable[[str], Tensor]]) -> bool:
    first, *others = (each(name) for each in read)
    return any(not torch.equal(first, other.to(first)) for other in others)
