"""What a model with distributions for weights predicts: the mean over draws of them."""

import math
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call

from holdfast.errors import ConfigurationError
from holdfast.settings import whole_number
from holdfast.variational.mean_field import drawing, mean_field_layers


@torch.no_grad()
def predictive(
    model: nn.Module, *inputs: Any, samples: int = 100, weights: Mapping[str, Tensor] | None = None, **named: Any
) -> Tensor:
    r"""Return :math:`\log \frac1S \sum_s p(y \mid x, \theta_s)` for every class, in evaluation mode.

    >>> log_probabilities = holdfast.predictive(model, x)

    Args:
        model: one that :func:`holdfast.mean_field` has changed.
        inputs: what it is called with.
        samples: S, how many draws.
        weights: parameters in the place of the model's own, by name, such as :func:`holdfast.refined` has found.
        named: what it is called with by keyword.
    """
    count = whole_number("samples", samples, "a whole number of at least 1", least=1)
    if not mean_field_layers(model):
        raise ConfigurationError("predictive() of a model without distributions; expected one from mean_field(model).")
    modes = [module for module in model.modules() if module.training]
    total: Tensor | None = None
    try:
        model.eval()
        with drawing(model):
            for _ in range(count):
                found = _log_probabilities(functional_call(model, dict(weights or {}), inputs, named))
                total = found if total is None else torch.logaddexp(total, found)
    finally:
        for module in modes:
            module.training = True
    assert total is not None
    return total - math.log(count)


def _log_probabilities(outputs: Any) -> Tensor:
    logits = getattr(outputs, "logits", outputs)
    if not isinstance(logits, Tensor) or logits.ndim < 2:
        raise ConfigurationError(
            f"The model returned a {type(outputs).__name__}, which is no batch of scores of classes; expected a tensor "
            "[N, ..., classes], or something that has it as .logits."
        )
    return logits.to(torch.promote_types(logits.dtype, torch.float32)).log_softmax(-1)
