"""The gradients that an optimiser was handed, to tell a new step from one that is tried again.

Before a step the penalty's gradient is added in place wherever no measure needs the task's alone afterwards. So a
gradient that nobody has touched since still has it in it, and has been measured: by a step that raised and is tried
again, which is then the same step, or by one that ended, which is then taken twice for one backward pass.
"""

import weakref
from collections.abc import Collection, Mapping

from torch import nn
from torch.optim import Optimizer
from torch.utils.weak import TensorWeakRef

from holdfast.consolidation.sharding import local


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
