"""The gradients that an optimiser is handed: whether a step is tried again with them, and what it leaves of them."""

import warnings
import weakref
from collections.abc import Collection, Iterable, Mapping
from typing import NamedTuple
from weakref import WeakSet

from torch import Tensor, nn
from torch.optim import Optimizer
from torch.utils.weak import TensorWeakRef

from holdfast.errors import HoldfastWarning
from holdfast.tensors.sharding import local


class HandedGradients:
    """Remembers the gradients of a step without keeping them alive, and whether they have changed since.

    Args:
        optimizer: that takes the step.
        parameters: all that it moves.
        held: the names of those whose gradient has the penalty's in it.
    """

    def __init__(
        self, optimizer: Optimizer, parameters: Mapping[str, nn.Parameter], held: Collection[str] = ()
    ) -> None:
        self.ended = False
        self._optimizer = weakref.ref(optimizer)
        self._held = held
        self._known: dict[str, tuple[TensorWeakRef, int] | None] = {}
        for name, parameter in parameters.items():
            grad = parameter.grad
            self._known[name] = None if grad is None else (TensorWeakRef(grad), local(grad)._version)

    def is_tried_again(self, optimizer: Optimizer, parameters: Mapping[str, nn.Parameter]) -> bool:
        """Whether a step has begun, not ended, and is taken again with the very gradients it had."""
        return (
            not self.ended
            and self._optimizer() is optimizer
            and self._known.keys() == parameters.keys()
            and any(known is not None for known in self._known.values())
            and all(self._is_untouched(name, parameter) for name, parameter in parameters.items())
        )

    def with_penalty(self, parameters: Mapping[str, nn.Parameter]) -> str | None:
        """Return the name of a parameter whose gradient still has the penalty's of this step in it, if any has.

        Gradients are zeroed together, so a look at one of them tells, and costs nothing at every step.
        """
        name = next((name for name in self._held if name in parameters), None)
        return name if name is not None and self._is_untouched(name, parameters[name]) else None

    def _is_untouched(self, name: str, parameter: nn.Parameter) -> bool:
        known, grad = self._known[name], parameter.grad
        if known is None or grad is None:
            return known is None and grad is None
        return known[0]() is grad and local(grad)._version == known[1]


class Lent(NamedTuple):
    """A gradient as an optimiser was given it."""

    gradient: Tensor
    version: int
    measured: bool
    """Whether this very tensor is to be measured after the step, not a copy of it."""


class Overwriters:
    """Remembers which optimisers were seen to leave gradients as they are."""

    def __init__(self) -> None:
        self._keeping: WeakSet[Optimizer] = WeakSet()

    def may_include(self, optimizer: Optimizer) -> bool:
        """Whether measures need a copy of the gradients that an optimiser is given."""
        return optimizer not in self._keeping

    def look(self, optimizer: Optimizer, lent: Iterable[Lent]) -> None:
        """Look, after a step, at what an optimiser has made of its gradients."""
        lent = list(lent)
        written = [one for one in lent if one.gradient._version != one.version]
        if any(one.measured for one in written):
            warnings.warn(
                f"{type(optimizer).__name__} has begun to overwrite gradients, so one step was measured with what it "
                "left of them. Set an optimiser's options before its first step.",
                HoldfastWarning,
                stacklevel=5,
            )
        if written:
            self._keeping.discard(optimizer)
        elif lent:
            self._keeping.add(optimizer)
