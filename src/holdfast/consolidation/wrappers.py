"""Optimisers inside other objects."""

from typing import TypeVar

from torch.optim import Optimizer

T = TypeVar("T")


def innermost(optimizer: T) -> T | Optimizer:
    """Return the optimiser that takes the steps, out of wrappers such as Accelerate's and Lightning's.

    Accelerate's wrapper is an ``Optimizer`` itself, but one whose hooks never run.
    """
    found: T | Optimizer = optimizer
    while isinstance(inner := getattr(found, "optimizer", None), Optimizer):
        found = inner
    return found
