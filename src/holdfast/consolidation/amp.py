"""What a gradient scaler tells a fused optimiser, and so must tell us.

``GradScaler.step`` hands a fused optimiser gradients that are still multiplied by the loss scale, and calls its
``step`` even when a gradient overflowed; the optimiser then unscales, or skips, inside. An observer that took the
gradients at face value would see them thousands of times too large, and steps that never happened.
"""

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor
from torch.amp import GradScaler
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


def gradients(loss: Tensor, parameters: Sequence[Tensor], scaler: GradScaler | None) -> list[Tensor | None]:
    """Return the gradients of a loss, taken at the scaler's loss scale if there is one, and unscaled.

    In float16 small gradients vanish on their way back unless the loss is scaled up. Where they overflow instead, as
    they do while a scaler looks for its scale, they are taken once more as they are.
    """
    if scaler is None or not scaler.is_enabled():
        return list(torch.autograd.grad(loss, parameters, allow_unused=True))
    scaled = torch.autograd.grad(scaler.scale(loss), parameters, allow_unused=True, retain_graph=True)
    if not all(bool(gradient.isfinite().all()) for gradient in scaled if gradient is not None):
        return list(torch.autograd.grad(loss, parameters, allow_unused=True))
    return [unscaled(gradient, scaler) for gradient in scaled]


def unscaled(gradient: Tensor | None, scaler: GradScaler | None) -> Tensor | None:
    """Return a gradient without the scaler's factor, in single precision at least: 16 bits would lose digits."""
    if gradient is None or scaler is None or not scaler.is_enabled():
        return gradient
    return (gradient.float() if gradient.dtype.itemsize < 4 else gradient) / scaler.get_scale()
