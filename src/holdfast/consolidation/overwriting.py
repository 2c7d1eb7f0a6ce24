"""Which optimisers overwrite the gradients that they are given.

Measures that wait for Δ need the task's gradient after the step. Most optimisers leave ``.grad`` as it is, but
``SGD(nesterov=True, foreach=True)``, the default on an accelerator, adds its momentum to it in place. So an optimiser's
first step is measured from copies, and looked at; one that kept its gradients needs no copies from then on.
"""

import warnings
from collections.abc import Iterable
from typing import NamedTuple
from weakref import WeakSet

from torch import Tensor
from torch.optim import Optimizer

from holdfast.errors import HoldfastWarning


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
