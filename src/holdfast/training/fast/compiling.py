"""Compiling functions of a recorded step, on devices where that is worth it."""

from collections.abc import Callable
from typing import Any

import torch

VARIANTS = 256
"""How many versions of one function may be compiled. torch's own limit is 8, after which it runs the rest uncompiled; a
process that goes through all measures meets it."""


def compiled(function: Callable[..., Any], device: torch.device) -> Callable[..., Any]:
    """Return a function compiled for a CUDA device, and as it is for any other.

    The CPU path does without, so that it needs no C++ compiler. A function that cannot be compiled whole raises.
    """
    if device.type != "cuda":
        return function
    from torch import _dynamo as dynamo  # noqa: PLC0415 (takes a second to import, and only GPUs need it)

    fast = torch.compile(function, fullgraph=True, dynamic=False)

    def call(*args: Any) -> Any:
        with dynamo.config.patch(recompile_limit=VARIANTS):
            return fast(*args)

    return call
