"""What a Trainer trains on, which it shows no callback: the batches of each step and their loss, seen at the model."""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from holdfast.errors import ConfigurationError, OrderError

_COUNT = "num_items_in_batch"
"""By which a Trainer divides losses itself, so that those of a step's parts add up."""


class SeenSteps:
    """The calls of a model in training between two optimiser steps.

    Args:
        model: as the Trainer trains it; wrappers around it call it.
    """

    def __init__(self, model: nn.Module) -> None:
        self._batches: list[dict[str, Any]] = []
        self._losses: list[float] = []
        self._adds_up = False
        self._open = True
        self._hook = model.register_forward_hook(self._see, with_kwargs=True)

    def close(self) -> None:
        """See no more until the step is over: holds run the model too."""
        self._open = False

    def take(self) -> tuple[float, list[dict[str, Any]]]:
        """Return the loss of the step that has been taken, and its batches; look out for the next one."""
        losses, batches, adds_up = self._losses, self._batches, self._adds_up
        self._losses, self._batches, self._open = [], [], True
        if not losses:
            raise OrderError(
                "task_free has seen no call of the model in this step that had inputs by name and returned a loss, so "
                "there is nothing to consolidate by: this Trainer computes its loss past the model. Expected a model "
                "that is given 'labels'; or, in a Trainer of your own, task_free.step(loss, inputs) at the end of "
                "training_step in place of HoldfastCallback(task_free=...)."
            )
        return sum(losses) if adds_up else sum(losses) / len(losses), batches

    def end(self) -> None:
        """Leave the model alone."""
        self._hook.remove()

    def _see(self, model: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], outputs: Any) -> None:
        if not (self._open and model.training and torch.is_grad_enabled()):
            return
        loss = outputs.get("loss") if isinstance(outputs, Mapping) else getattr(outputs, "loss", None)
        if not isinstance(loss, Tensor) or not kwargs:
            return
        self._adds_up = kwargs.get(_COUNT) is not None
        self._losses.append(float(loss.detach().float().mean()))
        self._batches.append({name: value for name, value in kwargs.items() if name != _COUNT})


def check_steps_are_seen(model: nn.Module) -> None:
    """Refuse a model that is copied to several devices of one process, whose copies nobody can look at."""
    if isinstance(model, nn.DataParallel):
        raise ConfigurationError(
            "task_free with a model in nn.DataParallel, whose copies are called in its place; expected one device a "
            "process, as torchrun starts them."
        )
