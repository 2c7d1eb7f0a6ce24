"""Optimisers that evaluate the loss themselves: a closure that gives them loss and gradient with the holds'."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.optim import Optimizer

if TYPE_CHECKING:
    from holdfast.guard.steps.watcher import StepWatcher

Closure = Callable[[], Any]


def closure_in(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Closure | None:
    """Return the closure among what an optimiser's step was called with; ``args[0]`` is the optimiser itself."""
    closure: Closure | None = args[1] if len(args) > 1 else kwargs.get("closure")
    return closure


def with_closure(
    args: tuple[Any, ...], kwargs: dict[str, Any], closure: Closure
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Return what a step is to be called with instead."""
    if len(args) > 1:
        return (args[0], closure, *args[2:]), kwargs
    return args, {**kwargs, "closure": closure}


def guarded(closure: Closure, watcher: "StepWatcher", optimizer: Optimizer, *, hold: bool) -> Closure:
    """Return a closure that gives the optimiser loss and gradient with the holds'.

    An optimiser may evaluate it several times in one step. The first time is at the weights before the step, so that
    gradient is the one that measures see. A closure may return nothing, as those of Lightning's manual optimisation do;
    one that leaves no gradient either has skipped this batch.
    """
    begun = False

    def evaluate() -> Any:
        nonlocal begun
        with torch.enable_grad():
            loss = closure()
        watcher.layouts.take_in_new(optimizer)
        owned = watcher.layouts.owned(optimizer)
        if loss is None and all(parameter.grad is None for parameter in owned.values()):
            return loss
        if not begun:
            begun = True
            watcher.begin(optimizer, hold=False, closure=True)
        if not hold or not watcher.holds_anything:
            return loss
        value = watcher.add_holds(owned)
        if loss is None:
            return loss
        return loss + (value.to(loss.device) if isinstance(loss, Tensor) else float(value))

    return evaluate
