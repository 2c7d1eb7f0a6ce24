"""In which precision matrices are multiplied, whatever the process has switched on."""

import contextlib
from collections.abc import Iterator
from typing import Literal

import torch

Precision = Literal["float32", "tf32", "bfloat16"]
"""float32: in full. tf32: with inputs rounded to 10 bits, on GPUs that can; elsewhere in full. Doubles stay doubles.
bfloat16: of tensors that have 16 bits themselves, whatever they had before."""


def in_precision(precision: Precision, dtype: torch.dtype) -> torch.dtype:
    """Return the type of tensors that are to be multiplied in a precision, which had another."""
    return torch.bfloat16 if precision == "bfloat16" else dtype


@contextlib.contextmanager
def products_in(precision: Precision, device: torch.device) -> Iterator[None]:
    """Multiply matrices in a precision, also where autocast would take 16 bits."""
    with contextlib.ExitStack() as stack:
        if torch.amp.is_autocast_available(device.type) and torch.is_autocast_enabled(device.type):
            stack.enter_context(torch.autocast(device.type, enabled=False))
        stack.enter_context(tf32_allowed(precision == "tf32", device))
        yield


@contextlib.contextmanager
def tf32_allowed(allowed: bool, device: torch.device) -> Iterator[None]:
    """Let CUDA's matrix products and convolutions round their inputs or not, then restore what was set."""
    if device.type != "cuda":
        yield
        return
    matmul, cudnn = torch.backends.cuda.matmul, torch.backends.cudnn
    before = matmul.allow_tf32, cudnn.allow_tf32
    matmul.allow_tf32 = cudnn.allow_tf32 = allowed
    try:
        yield
    finally:
        matmul.allow_tf32, cudnn.allow_tf32 = before
