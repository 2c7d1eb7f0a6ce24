"""In which precision a network is trained; weights, optimizer and importances stay in their own, whatever it is."""

import contextlib
from collections.abc import Iterator
from typing import Literal, get_args

import torch

from anchorhold.errors import ConfigurationError
from anchorhold.tensors.matrices import tf32_allowed

Precision = Literal["fp32", "tf32", "bf16"]
"""fp32: every product in full. tf32: matrix products and convolutions with inputs rounded to 10 bits, on GPUs that can;
elsewhere as fp32. bf16: forward and backward in 16 bits (autocast)."""


def check_precision(given: str) -> Precision:
    """Return a precision, or say which there are."""
    if given not in get_args(Precision):
        raise ConfigurationError(f"precision={given!r}: expected one of {', '.join(get_args(Precision))}.")
    return given  # type: ignore[return-value]


@contextlib.contextmanager
def computing_in(precision: Precision, device: torch.device) -> Iterator[None]:
    """Compute in a precision."""
    half = precision == "bf16"
    with tf32_allowed(precision == "tf32", device), torch.autocast(device.type, torch.bfloat16, enabled=half):
        yield
