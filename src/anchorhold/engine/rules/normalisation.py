"""Normalisation layers: their scale and shift act on an input that does not depend on them."""

from collections.abc import Callable, Sequence

import torch.nn.functional as F
from torch import Tensor

from anchorhold.engine.rules.base import Rule, register_rule, sum_to
from anchorhold.errors import ModelError


class Normalisation(Rule):
    r"""``y = x̂ · weight + bias``, so a sample's gradients are :math:`\sum \delta\,\hat x` and :math:`\sum \delta`."""

    def __init__(
        self,
        input: Tensor,
        weight: Tensor | None,
        bias: Tensor | None,
        normalised: Callable[[Tensor], Tensor],
        channels_second: bool,
    ) -> None:
        super().__init__(input, {"weight": weight, "bias": bias})
        self.normalised = normalised
        self.channels_second = channels_second

    def gradients(self, role: str, a: Tensor, delta: Tensor) -> Tensor:
        """Return the gradients, summed over all that shares the parameter."""
        if role == "weight":
            # δ's rows broadcast over the input. A merged batch [N, T, ...] is normalised as the call saw it.
            flat = a.flatten(0, 1) if a.ndim > self.input.ndim else a
            delta = delta * self.normalised(flat).view_as(a)
        shape = self.parameters[role].shape
        if not self.channels_second:
            return sum_to(delta, shape, 2)
        delta = delta.movedim(delta.ndim - self.input.ndim + 1, 2)
        return delta.reshape(*delta.shape[:3], -1).sum(3)

    def reads(self, dim: int) -> bool:
        """Return whether samples come first, which they must where channels come second."""
        return dim == 0 or not self.channels_second


@register_rule(F.layer_norm)
def layer_norm(
    input: Tensor,
    normalized_shape: Sequence[int],
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    eps: float = 1e-5,
) -> Normalisation:
    """Bind ``F.layer_norm``."""
    return Normalisation(input, weight, bias, lambda x: F.layer_norm(x, list(normalized_shape), eps=eps), False)


@register_rule(F.rms_norm)
def rms_norm(
    input: Tensor, normalized_shape: Sequence[int], weight: Tensor | None = None, eps: float | None = None
) -> Normalisation:
    """Bind ``F.rms_norm``."""
    return Normalisation(input, weight, None, lambda x: F.rms_norm(x, list(normalized_shape), eps=eps), False)


@register_rule(F.group_norm)
def group_norm(
    input: Tensor,
    num_groups: int,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    eps: float = 1e-5,
) -> Normalisation:
    """Bind ``F.group_norm``."""
    return Normalisation(input, weight, bias, lambda x: F.group_norm(x, num_groups, eps=eps), True)


@register_rule(F.batch_norm)
def batch_norm(
    input: Tensor,
    running_mean: Tensor | None,
    running_var: Tensor | None,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    training: bool = False,
    momentum: float = 0.1,  # noqa: ARG001 (part of the signature)
    eps: float = 1e-5,
) -> Normalisation:
    """Bind ``F.batch_norm`` with running statistics; with the batch's own, no sample stands alone."""
    if training or running_mean is None:
        raise ModelError(
            "A batch norm that normalises with the batch's own statistics mixes samples, so no per-sample gradient "
            "exists. Use track_running_stats=True, and leave it in eval mode while importance is measured."
        )
    return Normalisation(input, weight, bias, lambda x: F.batch_norm(x, running_mean, running_var, eps=eps), True)
