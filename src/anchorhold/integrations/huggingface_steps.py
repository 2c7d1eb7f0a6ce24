"""What a Trainer trains on, which it shows no callback: the batches of each step and their loss, seen at the model."""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from anchorhold.errors import ConfigurationError, OrderError

_COUNT = "num_items_in_batch"
"""By which a Trainer divides losses itself, so that those of a step's parts add up."""


class SeenSteps:
    """The calls of a model in training between two optimizer steps.

    Args:
        model: as the Trainer trains it; wrappers around it call it.
    """

    def __init__(self, model: nn.Module) -> None:
        self._batches: list[dict[str, Any]] = []
        self._losses: list[float] = []
        self._adds_up = False
        self._trained = False
        """Whether a gradient has come to any of them: some trainers let the model compute one, and train by another."""
        self._open = True
        self._hook = model.register_forward_hook(self._see, with_kwargs=True)

    def close(self) -> None:
        """See no more until the step is over: holds run the model too."""
        self._open = False

    def take(self) -> tuple[float, list[dict[str, Any]]]:
        """Return the loss of the step that has been taken, and its batches; look out for the next one."""
        losses, batches, adds_up, trained = self._losses, self._batches, self._adds_up, self._trained
        self._losses, self._batches, self._open, self._trained = [], [], True, False
        if not losses or not trained:
            raise OrderError(
                "task_free has seen no call of the model in this step that had inputs by name and returned a loss by "
                "which it is trained, so there is nothing to consolidate by: this Trainer computes its loss past the "
                "model. Expected a model that is given 'labels' and trained by the loss that it returns; or, in a "
                "Trainer of your own, task_free.step(loss, inputs) at the end of training_step in place of "
                "AnchorholdCallback(task_free=...)."
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
        self._find_out_if_trained(loss, getattr(outputs, "log_probs", None))
        # Trainers say in the same way how the model is to be called, such as use_cache=False, which no sample has.
        data = {n: v for n, v in kwargs.items() if not (v is None or isinstance(v, bool | int | float | str))}
        data.pop(_COUNT, None)
        self._batches.append(data)

    def _find_out_if_trained(self, loss: Tensor, log_probs: Tensor | None) -> None:
        """Look whether the backward pass comes from this loss.

        TRL's trainers take the tokens' log-probabilities from the model and make their losses of them: that is the
        model's own where all tokens count alike, and another one where they do not, as in those of preferences.
        """

        def mark(gradient: Tensor) -> None:
            del gradient
            self._trained = True

        def mark_if_alike(gradient: Tensor) -> None:
            low, high = gradient.aminmax()
            self._trained |= bool(low == high) and bool(high < 0)

        if loss.requires_grad:
            loss.register_hook(mark)
        if isinstance(log_probs, Tensor) and log_probs.requires_grad and log_probs.numel():
            log_probs.register_hook(mark_if_alike)


def check_steps_are_seen(model: nn.Module) -> None:
    """Refuse a model that is copied to several devices of one process, whose copies nobody can look at."""
    if isinstance(model, nn.DataParallel):
        raise ConfigurationError(
            "task_free with a model in nn.DataParallel, whose copies are called in its place; expected one device a "
            "process, as torchrun starts them."
        )
