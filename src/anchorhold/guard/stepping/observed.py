"""Gradients that a user gives for the coming step: taken from losses, scaled or not, in one process or several."""

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn
from torch.amp import GradScaler

from anchorhold.engine.refusals import refuse_nested_backward
from anchorhold.errors import OrderError
from anchorhold.guard.core import Core
from anchorhold.guard.distributed.ranks import is_fully_sharded
from anchorhold.tensors.sharding import reshard
from anchorhold.tensors.storage import running_dtype


@dataclass
class Observed:
    """The gradients that a user has given for the coming step, by parameter; ``None`` for a gradient of 0."""

    gradient: dict[str, Tensor | None] = field(default_factory=dict)
    independent: dict[str, Tensor | None] = field(default_factory=dict)
    samples: int | None = None
    squares: dict[str, Tensor] = field(default_factory=dict)
    """The means of the squared gradients of the step's samples."""

    def add(self, other: "Observed") -> None:
        """Add the gradients of another part of the same step's batch."""
        for mine, more in ((self.gradient, other.gradient), (self.independent, other.independent)):
            for name, gradient in more.items():
                known = mine.get(name)
                mine[name] = gradient if known is None else known if gradient is None else known + gradient
        self.samples = other.samples if other.samples is not None else self.samples

    def drop(self, names: Sequence[str]) -> None:
        """Drop the gradients of parameters that have taken their step."""
        for name in names:
            self.gradient.pop(name, None)
            self.independent.pop(name, None)
            self.squares.pop(name, None)


def protected_gradients(core: Core, loss: Tensor, scaler: GradScaler | None) -> dict[str, Tensor | None]:
    """Return the gradients of a loss with respect to the protected parameters that are being trained."""
    trained = {name: p for name, p in core.runtime.parameters.items() if p.requires_grad}
    parameters = list(trained.values())
    if is_fully_sharded(core.runtime.model):
        # All ranks raise if one has no gradient: in backward() the others would wait for it.
        core.runtime.ranks.together(lambda: _require_gradient(loss))
        found = gradients_by_backward(loss, parameters, core.runtime.model, scaler)
    else:

        def own_gradients() -> list[Tensor | None]:
            _require_gradient(loss)
            # At a task's first step alone, since it goes through the whole graph.
            if not core.task.steps:
                refuse_nested_backward(loss, trained)
            return _gradients(loss, parameters, scaler)

        found = core.runtime.ranks.mean(own_gradients, parameters)
    return {
        name: None if gradient is None else gradient.to(running_dtype(gradient))
        for name, gradient in zip(trained, found, strict=True)
    }


def gradients_of_halves(
    core: Core, first: Tensor, second: Tensor, parameters: Sequence[Tensor], scaler: GradScaler | None
) -> list[list[Tensor | None]]:
    """Return the gradients of two halves' losses, each at the scaler's loss scale if there is one."""

    def of(loss: Tensor, *, retain_graph: bool) -> list[Tensor | None]:
        _require_gradient(loss)
        if not core.task.steps:
            refuse_nested_backward(loss, core.runtime.parameters)
        scaled = loss if scaler is None else scaler.scale(loss)
        found = torch.autograd.grad(scaled, parameters, allow_unused=True, retain_graph=retain_graph)
        return list(found)

    # Both may come from one forward pass, which the first backward pass must then leave for the second.
    return [
        core.runtime.ranks.mean(lambda: of(first, retain_graph=True), parameters),
        core.runtime.ranks.mean(lambda: of(second, retain_graph=False), parameters),
    ]


def unscaled(gradient: Tensor | None, scaler: GradScaler | None) -> Tensor | None:
    """Return a gradient without the scaler's factor, in single precision at least: 16 bits would lose digits."""
    if gradient is None:
        return None
    gradient = gradient.to(running_dtype(gradient))
    return gradient if scaler is None or not scaler.is_enabled() else gradient / scaler.get_scale()


def _gradients(loss: Tensor, parameters: Sequence[Tensor], scaler: GradScaler | None) -> list[Tensor | None]:
    """Return the gradients of a loss, taken at the scaler's loss scale if there is one, and unscaled.

    In float16 small gradients vanish on their way back unless the loss is scaled up. Where they overflow instead, as
    they do while a scaler looks for its scale, they are taken once more as they are.
    """
    if scaler is None or not scaler.is_enabled():
        return list(torch.autograd.grad(loss, parameters, allow_unused=True))
    # The graph is kept in case these overflow, and the gradients are taken once more.
    scaled = torch.autograd.grad(scaler.scale(loss), parameters, allow_unused=True, retain_graph=True)
    if not all(bool(gradient.isfinite().all()) for gradient in scaled if gradient is not None):
        return list(torch.autograd.grad(loss, parameters, allow_unused=True))
    return [unscaled(gradient, scaler) for gradient in scaled]


def gradients_by_backward(
    loss: Tensor, parameters: Sequence[nn.Parameter], model: nn.Module, scaler: GradScaler | None
) -> list[Tensor | None]:
    """Return the gradients of a sharded model's loss, averaged over the ranks, and leave every ``.grad`` as it is.

    The parameters that FSDP calculates with are none of the model's own, so ``torch.autograd.grad`` would not find
    them; only ``backward()`` brings their gradients home.
    """
    reshard(model)  # backward() gathers again what it needs
    kept = [(parameter, parameter.grad) for parameter in model.parameters()]
    try:
        # Emptied, so that backward() adds nothing to the user's own gradients.
        for parameter, _ in kept:
            parameter.grad = None
        (loss if scaler is None else scaler.scale(loss)).backward()
        return [unscaled(parameter.grad, scaler) for parameter in parameters]
    finally:
        for parameter, grad in kept:
            parameter.grad = grad


def _require_gradient(loss: Tensor) -> None:
    if not isinstance(loss, Tensor):
        raise OrderError(
            f"The loss given is a {type(loss).__name__}; expected a tensor that backward() could be called on."
        )
    if not loss.requires_grad:
        raise OrderError(
            "The loss given has no gradient: it was computed under torch.no_grad() or from detached outputs. Compute "
            "it from the model's outputs with gradients enabled."
        )
