"""Optimisers inside other objects."""

from typing import TypeVar

from torch.optim import Optimizer

T = TypeVar("T")


def innermost(optimizer: T) -> T | Optimizer:
    """Return the optimiser that takes the steps, out of wrappers such as Accelerate's and Lightning's.

    Accelerate's wrapper is an ``Optimizer`` itself, but one whose hooks never run. One whose hooks do run, such as
    Lookahead around another optimiser, takes steps of its own.
    """
    found: T | Optimizer = optimizer
    while not _runs_hooks(found) and isinstance(inner := getattr(found, "optimizer", None), Optimizer):
        found = inner
    return found


def _runs_hooks(optimizer: object) -> bool:
    """Whether torch has seen to it, when the optimiser was made, that its ``step`` calls hooks."""
    return bool(getattr(getattr(type(optimizer), "step", None), "hooked", False))
