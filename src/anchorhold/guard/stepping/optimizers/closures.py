"""Optimizers that evaluate the loss themselves: a closure that gives them loss and gradient with the holds'."""

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary, WeakSet

import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.utils.weak import TensorWeakRef

from anchorhold.errors import warn
from anchorhold.tensors.sharding import local

if TYPE_CHECKING:
    from anchorhold.guard.stepping.watcher import StepWatcher

Closure = Callable[[], Any]


def closure_in(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Closure | None:
    """Return the closure among what an optimizer's step was called with; ``args[0]`` is the optimizer itself."""
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
    """Keep weights and gradients from where a step begins, for optimizers that may move weights before they evaluate.

    SAM is one: its step first climbs by the gradient that it was given, and evaluates the closure up there. The step is
    from where it began all the same, and the gradient there is the one that measures see. Torch's own evaluate first.
    """

    def __init__(self) -> None:
        self._left: WeakKeyDictionary[Optimizer, list[tuple[TensorWeakRef, int]]] = WeakKeyDictionary()
        self._warned: WeakSet[Optimizer] = WeakSet()

    def keep(self, optimizer: Optimizer, owned: Mapping[str, nn.Parameter]) -> "Beginning | None":
        """Return copies, unless it is known that an optimizer evaluates its closure before it moves anything."""
        if type(optimizer).__module__.startswith("torch.optim."):
            return None
        left = self._left.get(optimizer, [])
        # What the last step left in .grad, and nobody has written to since, is no gradient of this one.
        return Beginning(owned, fresh=not any(grad() is not None and grad()._version == seen for grad, seen in left))

    def look(self, optimizer: Optimizer, beginning: "Beginning | None") -> "Beginning | None":
        """Return the copies if weights have moved since, at a step's first evaluation."""
        if beginning is None or not beginning.has_moved:
            return None
        if not beginning.has_gradients and optimizer not in self._warned:
            self._warned.add(optimizer)
            warn(_NO_GRADIENT.format(kind=type(optimizer).__name__))
        return beginning

    def ended(self, optimizer: Optimizer, owned: Mapping[str, nn.Parameter]) -> None:
        """Remember the gradients that a step has left: still there at the next one, they are none of its own."""
        grads = [parameter.grad for parameter in owned.values() if parameter.grad is not None]
        self._left[optimizer] = [(TensorWeakRef(grad), grad._version) for grad in grads[:1]]


_NO_GRADIENT = (
    "{kind} moves weights before it evaluates its closure, and was called without a gradient at the weights where its "
    "step began: what is measured is the gradient where it evaluates. Call backward() before step(closure), or use a "
    "form of it that is called without a closure."
)


class Beginning:
    """The weights before a step, and the gradients there."""

    def __init__(self, owned: Mapping[str, nn.Parameter], *, fresh: bool) -> None:
        self._owned = owned
        self.weights = {name: parameter.detach().clone() for name, parameter in owned.items()}
        self.gradients: dict[str, Tensor | None] = {
            name: None if parameter.grad is None or not fresh else parameter.grad.detach().clone()
            for name, parameter in owned.items()
        }

    @torch.no_grad()
    def restore(self) -> None:
        """Put the weights back, for a step that is not taken after all."""
        for name, parameter in self._owned.items():
            parameter.copy_(self.weights[name])

    @property
    def has_moved(self) -> bool:
        """Return whether the weights are no longer those."""
        return any(not torch.equal(local(p.detach()), local(self.weights[name])) for name, p in self._owned.items())

    @property
    def has_gradients(self) -> bool:
        """Return whether there were any: zeros are what ``zero_grad(set_to_none=False)`` leaves."""
        return any(gradient is not None and bool(local(gradient).any()) for gradient in self.gradients.values())


def guarded(closure: Closure, watcher: "StepWatcher", optimizer: Optimizer, *, hold: bool) -> Closure:
    """Return a closure that gives the optimizer loss and gradient with the holds'.

    An optimizer may evaluate it several times in one step. The first time is at the weights before the step, so that
    gradient is the one that measures see; where it has moved weights before, it is the one that it was called with. A
    closure may return nothing, as those of Lightning's manual optimisation do; one that leaves no gradient either has
    skipped this batch.
    """
    begun = False
    watcher.layouts.take_in_new(optimizer)
    kept = watcher.beginnings.keep(optimizer, watcher.layouts.owned(optimizer))
    if hold:
        watcher.before_step(watcher.layouts.owned(optimizer))

    def evaluate() -> Any:
        nonlocal begun
        beginning = None if begun else watcher.beginnings.look(optimizer, kept)
        try:
            # Most steps run under no_grad, and not every optimizer enables gradients for its closure.
            with torch.enable_grad():
                loss = closure()
        except BaseException:
            watcher.abandon_step()
            raise
        watcher.layouts.take_in_new(optimizer)
        # What the closure has unfrozen belongs to the step too.
        owned = watcher.layouts.owned(optimizer)
        if loss is None and all(parameter.grad is None for parameter in owned.values()):
            return loss
        if not begun:
            begun = True
            try:
                watcher.begin(optimizer, hold=hold, closure=True, beginning=beginning)
            except BaseException:
                watcher.abandon_step()
                # The optimizer has moved the weights already, and the step that would move them back is not taken.
                if beginning is not None:
                    beginning.restore()
                raise
        if not hold or not watcher.holds_anything:
            return loss
        value, task_share = watcher.add_holds(optimizer, owned)
        if isinstance(loss, Tensor):
            return (loss if task_share == 1 else task_share * loss) + value.to(loss.device)
        return task_share * loss + float(value) if isinstance(loss, int | float) else loss

    return evaluate
