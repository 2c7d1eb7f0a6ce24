"""The gradients that an optimizer is handed: whether a step is tried again with them, and what it leaves of them."""

import warnings
import weakref
from collections.abc import Iterable, Mapping, Sequence
from itertools import chain
from typing import NamedTuple
from weakref import WeakSet

from torch import Tensor, nn
from torch.optim import Optimizer
from torch.utils.weak import TensorWeakRef

from anchorhold.errors import AnchorholdWarning
from anchorhold.guard.stepping.bundles import Bundle, Single
from anchorhold.tensors.sharding import local


class HandedGradients:
    """Remember the gradients of a step without keeping them alive, and whether they have changed since.

    Before a step the hold's gradient is added in place wherever no measure needs the task's alone afterwards. So a
    gradient that nobody has touched since still has it in it, and has been measured: by a step that raised and is tried
    again, which is then the same step, or by one that ended, which is then taken twice for one backward pass.

    Args:
        optimizer: that takes the step.
        parameters: all that it moves.
        changed: those whose gradients have the hold's in them.
    """

    def __init__(
        self, optimizer: Optimizer, parameters: Mapping[str, nn.Parameter], changed: Mapping[str, nn.Parameter]
    ) -> None:
        self.ended = False
        self._optimizer = weakref.ref(optimizer)
        self._changed = changed
        self._known = dict(zip(parameters, _versions(parameters.values()), strict=True))
        # One that is known to be alive vouches for the others: what is freed may come back under the same id.
        first = next((p.grad for p in chain(changed.values(), parameters.values()) if p.grad is not None), None)
        self._first = None if first is None else TensorWeakRef(first)

    def is_tried_again(self, optimizer: Optimizer, parameters: Mapping[str, nn.Parameter]) -> bool:
        """Return whether a step has begun, not ended, and is taken again with the very gradients it had."""
        return (
            not self.ended
            and self._optimizer() is optimizer
            and self._first is not None
            and self._first() is not None
            and list(self._known.values()) == _versions(parameters.values())
        )

    def still_changed(self, parameters: Mapping[str, nn.Parameter]) -> str | None:
        """Return the name of a parameter whose gradient still has the hold's of this step in it, if any has.

        Gradients are zeroed together, so a look at one of them tells, and costs nothing at every step.
        """
        name = next((name for name in self._changed if name in parameters), None)
        if name is None or self._first is None or self._first() is None:
            return None
        return name if _versions([parameters[name]])[0] == self._known[name] is not None else None


def _versions(parameters: Iterable[nn.Parameter]) -> list[tuple[int, ...] | None]:
    """Return what tells each gradient from another, and from itself after it was written to."""
    grads = [parameter.grad for parameter in parameters]
    # A DTensor counts what is written to it, its local part what is written to that alone.
    return [
        None
        if grad is None
        else (id(grad), grad._version)
        if type(grad) is Tensor
        else (id(grad), grad._version, local(grad)._version)
        for grad in grads
    ]


class Lent(NamedTuple):
    """A gradient as an optimizer was given it."""

    gradient: Tensor
    version: int
    measured: bool
    """Whether this very tensor is to be measured after the step, not a copy of it."""


def lent_by(bundles: Iterable[Bundle]) -> list[Lent]:
    """Return the gradients that an optimizer is about to get as they are, and that are measured after the step."""
    lent = []
    for bundle in bundles:
        given = bundle.own[0]
        if isinstance(bundle, Single) and given is not None and bundle.like.grad is given:
            lent.append(Lent(given, given._version, measured=bundle.gradient is given))
    return lent


class Overwriters:
    """Find out which optimizers overwrite gradients, so that measures need a copy of those that they are given."""

    def __init__(self) -> None:
        self.keeping: WeakSet[Optimizer] = WeakSet()
        """Those that were seen to leave gradients as they are."""

    def look(self, optimizer: Optimizer, lent: Sequence[Lent]) -> None:
        """Look, after a step, at what an optimizer has made of its gradients."""
        written = [one for one in lent if one.gradient._version != one.version]
        if any(one.measured for one in written):
            warnings.warn(
                f"{type(optimizer).__name__} has begun to overwrite gradients, so one step was measured with what it "
                "left of them. Set an optimizer's options before its first step.",
                AnchorholdWarning,
                stacklevel=5,
            )
        if written:
            self.keeping.discard(optimizer)
        elif lent:
            self.keeping.add(optimizer)
