"""Consolidating an average of the weights, such as an exponential moving one, in place of the latest weights."""

import contextlib
from collections.abc import Iterable, Iterator

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from anchorhold.errors import ConfigurationError
from anchorhold.guard.stepping.optimizers.accepted import trained_by
from anchorhold.tensors.names import named_buffers, named_parameters


@contextlib.contextmanager
def averaged_weights(model: nn.Module, average: nn.Module) -> Iterator[None]:
    """Give a model the weights and buffers of an average of it for a while, and then its own again.

    What is measured and made the anchor is the average, if that is what is kept of the task:

    >>> with averaged_weights(model, ema):
    ...     guard.consolidate(batches)

    Args:
        model: the network that is trained.
        average: a copy with other weights: an ``AveragedModel``, or any module with parameters of the same names.
    """
    own, given = _tensors(model), _tensors(average)
    for name, tensor in own.items():
        if name not in given or given[name].shape != tensor.shape:
            has = f"one of shape {tuple(given[name].shape)}" if name in given else "none of that name"
            raise ConfigurationError(
                f"The model has {name!r} of shape {tuple(tensor.shape)}, and the average {has}. Give an average of "
                "this model, such as AveragedModel(model)."
            )
    kept = {name: tensor.detach().clone() for name, tensor in own.items()}
    try:
        _copy(given, own)
        yield
    finally:
        _copy(kept, own)


@contextlib.contextmanager
def evaluated_weights(optimizers: Iterable[Optimizer]) -> Iterator[None]:
    """Let schedule-free optimizers give their models the weights that are evaluated, and then those in training again.

    Between steps their parameters are a point where the next gradient is taken; what the training has found is an
    average, which the optimizer's ``eval()`` puts there (Defazio et al. 2024, arXiv 2405.15682).
    """
    training = [optimizer for optimizer in optimizers if _is_between_averages(optimizer)]
    parameters = [parameter for optimizer in training for parameter in trained_by(optimizer)]
    kept = [parameter.detach().clone() for parameter in parameters]  # since there and back again would round
    try:
        for optimizer in training:
            optimizer.eval()  # type: ignore[attr-defined]
        yield
    finally:
        for optimizer in training:
            optimizer.train()  # type: ignore[attr-defined]
        with torch.no_grad():
            for parameter, own in zip(parameters, kept, strict=True):
                parameter.copy_(own)


def refuse_between_averages(optimizers: Iterable[Optimizer]) -> None:
    """Refuse to move weights that a schedule-free optimizer has put there for its next gradient alone."""
    training = [optimizer for optimizer in optimizers if _is_between_averages(optimizer)]
    if training:
        raise ConfigurationError(
            f"{type(training[0]).__name__} is in its training mode, in which the weights are those of the next "
            "gradient, not those that it has found. Call its eval() first."
        )


def _is_between_averages(optimizer: Optimizer) -> bool:
    """Return whether an optimizer has modes, as schedule-free ones do, and is in that of training."""
    modes = all(callable(getattr(optimizer, mode, None)) for mode in ("eval", "train"))
    return modes and any(group.get("train_mode") is True for group in optimizer.param_groups)


def _tensors(model: nn.Module) -> dict[str, Tensor]:
    return dict(named_parameters(model)) | dict(named_buffers(model))


@torch.no_grad()
def _copy(source: dict[str, Tensor], target: dict[str, Tensor]) -> None:
    for name, tensor in target.items():
        tensor.copy_(source[name])
