"""Optimisers that evaluate the loss themselves: a closure that gives them loss and gradient with the holds'."""

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any
from weakref import WeakSet

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from holdfast.tensors.sharding import local

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


class Beginnings:
    """Weights and gradients as they are when a step begins, of optimisers that move weights before they evaluate.

    SAM is one: its step first climbs by the gradient that it was given, and evaluates the closure up there. The step is
    from where it began all the same, and the gradient there is the one that measures see.
    """

    def __init__(self) -> None:
        self._evaluating_first: WeakSet[Optimizer] = WeakSet()

    def keep(self, optimizer: Optimizer, owned: Mapping[str, nn.Parameter]) -> "Beginning | None":
        """Return copies, unless an optimiser was seen to evaluate its closure before it moves anything."""
        return None if optimizer in self._evaluating_first else Beginning(owned)

    def look(self, optimizer: Optimizer, beginning: "Beginning | None") -> "Beginning | None":
        """Return the copies if weights have moved since, at a step's first evaluation."""
        if beginning is None or beginning.has_moved:
            return beginning
        self._evaluating_first.add(optimizer)
        return None


class Beginning:
    """The weights before a step, and the gradients there."""

    def __init__(self, owned: Mapping[str, nn.Parameter]) -> None:
        self._owned = owned
        self.weights = {name: parameter.detach().clone() for name, parameter in owned.items()}
        self.gradients: dict[str, Tensor | None] = {
            name: None if parameter.grad is None else parameter.grad.detach().clone()
            for name, parameter in owned.items()
        }

    @property
    def has_moved(self) -> bool:
        """Whether the weights are no longer those."""
        return any(not torch.equal(local(p.detach()), local(self.weights[name])) for name, p in self._owned.items())

    @property
    def has_gradients(self) -> bool:
        """Whether there were any."""
        return any(gradient is not None for gradient in self.gradients.values())


def guarded(closure: Closure, watcher: "StepWatcher", optimizer: Optimizer, *, hold: bool) -> Closure:
    """Return a closure that gives the optimiser loss and gradient with the holds'.

    An optimiser may evaluate it several times in one step. The first time is at the weights before the step, so that
    gradient is the one that measures see; where it has moved weights before, it is the one that it was called with. A
    closure may return nothing, as those of Lightning's manual optimisation do; one that leaves no gradient either has
    skipped this batch.
    """
    begun = False
    measured = bool(watcher.measures.every)
    kept = watcher.beginnings.keep(optimizer, watcher.layouts.owned(optimizer)) if measured else None

    def evaluate() -> Any:
        nonlocal begun
        beginning = None if begun else watcher.beginnings.look(optimizer, kept)
        with torch.enable_grad():
            loss = closure()
        watcher.layouts.take_in_new(optimizer)
        owned = watcher.layouts.owned(optimizer)
        if loss is None and all(parameter.grad is None for parameter in owned.values()):
            return loss
        if not begun:
            begun = True
            watcher.begin(optimizer, hold=hold, closure=True, beginning=beginning)
        if not hold or not watcher.holds_anything:
            return loss
        value = watcher.add_holds(owned)
        if loss is None:
            return loss
        return loss + (value.to(loss.device) if isinstance(loss, Tensor) else float(value))

    return evaluate
