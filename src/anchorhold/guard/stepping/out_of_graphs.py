"""Functions that torch's compiler leaves alone, and that do not load it before they are called."""

from collections.abc import Callable
from typing import Any, TypeVar

import torch

F = TypeVar("F", bound=Callable[..., Any])


def out_of_graphs(function: F) -> F:
    """Return the function as ``torch.compiler.disable`` makes it: called as it is by what is compiled.

    That loads the compiler at once, which takes longer than to load torch, also where no optimiser is ever made: with
    the laboratory's fast engine, or to look at a saved state. torch's own way for its optimisers waits for a call.
    """
    kept: F = getattr(torch, "_disable_dynamo", torch.compiler.disable)(function)
    return kept
