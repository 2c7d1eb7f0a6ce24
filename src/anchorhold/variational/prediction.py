"""What a model with distributions for weights predicts: the mean over draws of them."""

import math
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call

from anchorhold.errors import ConfigurationError
from anchorhold.settings import whole_number
from anchorhold.variational.mean_field import drawing, layers_of


@torch.no_grad()
def predictive(
    model: nn.Module,
    *inputs: Any,
    samples: int = 100,
    weights: Mapping[str, Tensor] | None = None,
    class_dim: int | None = None,
    **named: Any,
) -> Tensor:
    r"""Return :math:`\log \frac1S \sum_s p(y \mid x, \theta_s)` for every class, in evaluation mode.

    >>> log_probabilities = anchorhold.variational.predictive(model, x)

    Args:
        model: one that :func:`anchorhold.variational.mean_field` has changed.
        inputs: what it is called with.
        samples: S, how many draws.
        weights: parameters in the place of the model's own, by name, such as
            :func:`anchorhold.variational.refined` has found.
        class_dim: the dimension of the outputs that holds the classes: 1 for ``[N, C, H, W]``. ``None`` for the last
            one of outputs of two or three dimensions.
        named: what it is called with by keyword.
    """
    count = whole_number("samples", samples, "a whole number of at least 1", least=1)
    layers_of(model, "predictive()")
    own = _checked(weights or {}, model)
    modes = [module for module in model.modules() if module.training]
    total: Tensor | None = None
    try:
        model.eval()
        with drawing(model):
            for _ in range(count):
                found = _log_probabilities(functional_call(model, own, inputs, named), class_dim)
                total = found if total is None else torch.logaddexp(total, found)
    finally:
        for module in modes:
            module.training = True
    assert total is not None
    return total - math.log(count)


def _checked(weights: Mapping[str, Tensor], model: nn.Module) -> dict[str, Tensor]:
    """Return weights by names and of shapes that the model has, or say which one it has not."""
    there = {name: tensor.shape for name, tensor in model.named_parameters(remove_duplicate=False)}
    there |= {name: tensor.shape for name, tensor in model.named_buffers(remove_duplicate=False)}
    for name, tensor in weights.items():
        if name not in there:
            raise ConfigurationError(
                f"weights have {name!r}, which the model has not; expected names of model.named_parameters(), such as "
                f"{next(iter(there))!r}."
            )
        shape = tuple(getattr(tensor, "shape", ()))
        if shape != there[name]:
            raise ConfigurationError(
                f"weights[{name!r}] has shape {shape}; expected {tuple(there[name])}, as the model's own has."
            )
    return dict(weights)


def _log_probabilities(outputs: Any, class_dim: int | None) -> Tensor:
    logits = getattr(outputs, "logits", outputs)
    if not isinstance(logits, Tensor) or logits.ndim < 2:
        raise ConfigurationError(
            f"The model returned a {type(outputs).__name__}, which is no batch of scores of classes; expected a tensor "
            "[N, ..., classes], or something that has it as .logits."
        )
    dim = _class_dim(tuple(logits.shape), class_dim)
    return logits.to(torch.promote_types(logits.dtype, torch.float32)).log_softmax(dim)


def _class_dim(shape: tuple[int, ...], given: int | None) -> int:
    """Return the dimension that holds the classes, or refuse outputs in which it cannot be."""
    if given is None and len(shape) > 3:
        raise ConfigurationError(
            f"Outputs of shape {shape} do not say which of their dimensions holds the classes; expected class_dim=, "
            "such as 1 for [N, C, H, W]."
        )
    dim = -1 if given is None else whole_number("class_dim", given, "a dimension of the outputs, such as 1 or -1")
    if dim == 0 or not -len(shape) < dim < len(shape):
        raise ConfigurationError(
            f"class_dim={dim} for outputs of shape {shape}; expected one of their dimensions, and not the first, which "
            "is the samples'."
        )
    if shape[dim] < 2:
        raise ConfigurationError(
            f"Outputs of shape {shape} have one class, whose probability is always 1; expected two or more. For one "
            "logit z of yes or no, let the model return torch.cat([torch.zeros_like(z), z], -1)."
        )
    return dim
