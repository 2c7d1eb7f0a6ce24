"""What a gradient scaler tells a fused optimiser, and so must tell us.

``GradScaler.step`` hands a fused optimiser gradients that are still multiplied by the loss scale, and calls its
``step`` even when a gradient overflowed; the optimiser then unscales, or skips, inside. An observer that took the
gradients at face value would see them thousands of times too large, and steps that never happened.
"""

from typing import NamedTuple

from torch import Tensor
from torch.optim import Optimizer


class Scaling(NamedTuple):
    """The factor in the gradients that an optimiser is about to remove, and whether it is about to skip."""

    factor: float
    skipped: bool


def read_scaling(optimizer: Optimizer) -> Scaling:
    """Return what the scaler has set on the optimiser for the coming step."""
    scale: Tensor | None = getattr(optimizer, "grad_scale", None)
    found_inf: Tensor | None = getattr(optimizer, "found_inf", None)
    skipped = found_inf is not None and bool(found_inf.item() > 0)
    return Scaling(1.0 if scale is None else float(scale), skipped)
