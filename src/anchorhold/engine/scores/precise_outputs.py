r"""Outputs with more digits, for networks that are nearly certain.

The gradients of a softmax score are proportional to :math:`1 - q \approx e^{-\text{margin}}`, so the *absolute*
rounding error of a logit becomes the *relative* error of the importance. In float32 that is :math:`|z|` times 10⁻⁷ and
more: too much where every sample is classified with large logits. There the outputs, and only they, are computed once
more in float64; the backward pass has no such amplification. For a large model that would take memory that its users
have not got, and many GPUs are slow at it, so it keeps the digits that it has: five or so, less those of the logits.
"""

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_map

from anchorhold.engine.batches import Forward
from anchorhold.engine.isolation.replaceable import Replaceable
from anchorhold.engine.scores.base import Score
from anchorhold.engine.scores.softmax import Softmax

LARGEST_LOGIT = 8.0
"""Rounding of float32 logits up to about this size leaves the importance five digits with room to spare."""

MOST_WEIGHTS = 2**26
"""Of a model that is computed with in float64, half a gigabyte of them."""


def precise_outputs(model: nn.Module, forward: Forward, inputs: Any, outputs: Tensor, score: Score) -> Tensor:
    """Return the outputs, from a forward pass in float64 where the float32 one has too few digits for a softmax."""
    outputs = outputs.detach()
    if outputs.dtype != torch.float32 or outputs.device.type == "mps" or not _is_amplified(score.logits(outputs)):
        return outputs
    replaceable = Replaceable(model, forward)
    if sum(tensor.numel() for _, tensor in replaceable.slots()) > MOST_WEIGHTS:
        return outputs
    try:
        with torch.no_grad():
            doubled = {slot: _double(tensor) for slot, tensor in replaceable.slots()}
            wide = replaceable.call_with(doubled, tree_map(_double, inputs))
    except Exception:  # noqa: BLE001 (a model that takes float32 alone says so with whatever error its author chose)
        return outputs  # which are right, only with fewer digits
    return wide if isinstance(wide, Tensor) and wide.shape == outputs.shape else outputs


def _is_amplified(logits: Iterable[Tensor]) -> bool:
    """Whether the typical logit is large, where samples count by their share in the importance: by 1 − q."""
    weighted = total = 0.0
    for some in logits:
        softmax = Softmax(some)
        uncertainty = softmax.complement().gather(-1, softmax.top)
        largest = some.double().masked_fill(some.isinf(), 0.0).abs().amax(-1, keepdim=True)
        weighted += float((uncertainty * largest).sum())
        total += float(uncertainty.sum())
    return weighted > LARGEST_LOGIT * total


def _double(leaf: Any) -> Any:
    return leaf.detach().double() if isinstance(leaf, Tensor) and leaf.is_floating_point() else leaf
