"""Looking for NaN and infinities before a step spoils anything, and saying whose they are."""

from collections.abc import Iterable, Mapping, Sequence
from itertools import chain
from typing import NoReturn

import torch
from torch import Tensor, nn

from anchorhold.errors import NotFiniteError
from anchorhold.guard.core import Core
from anchorhold.guard.monitor import Monitor, is_capturing
from anchorhold.guard.stepping.bundles import Bundle
from anchorhold.holds.base import is_looked_at
from anchorhold.tensors.sharding import is_finite, is_sharded


class FiniteChecks:
    """Refuse steps with gradients or weights that are not finite, on a CPU, where looking costs little.

    An accelerator would have to be waited for at every step: there, the end of the task finds it.

    Args:
        core: what the guard is made of.
        monitors: those that may know why a gradient is not finite.
    """

    def __init__(self, core: Core, monitors: Sequence[Monitor]) -> None:
        self.core = core
        self.monitors = monitors

    def check_gradients(self, bundles: Sequence[Bundle], sums: Sequence[Tensor]) -> None:
        """Raise :class:`NotFiniteError` if gradients that measures see are not finite, on all ranks if on one.

        The user's own gradients are put back before that.

        Args:
            bundles: with their gradients.
            sums: those of the gradients that can be looked at now; bundles are only searched if one is not finite.
        """
        # One look for all. A sum may overflow though its gradient is finite: then the search below finds none.
        finite = not sums or bool(torch.stack([total.double() for total in sums]).isfinite().all())
        # Every rank asks, so that all of them go on to the search or none does.
        if not self.core.runtime.found_by_any_rank([] if finite else [True]):
            return
        spoilt = [
            name
            for bundle in bundles
            if not all(map(_looks_finite, (bundle.gradient, bundle.independent)))
            for name in bundle.names
            if len(bundle.names) == 1 or not bundle.is_finite(name)
        ]
        spoilt.sort(key=list(self.core.runtime.parameters).index)
        for name in self.core.runtime.found_by_any_rank(spoilt):
            for bundle in bundles:
                bundle.put_back()
            self._refuse_gradient(name)

    def check_own_gradients(self, bundles: Iterable[Bundle]) -> None:
        """Raise :class:`NotFiniteError` if a ``.grad`` is not finite, where measures see another gradient."""
        own = [(name, grad) for bundle in bundles for name, grad in zip(bundle.names, bundle.own, strict=True)]
        spoilt = [name for name, grad in own if grad is not None and not grad.is_sparse and not _looks_finite(grad)]
        for name in self.core.runtime.found_by_any_rank(spoilt):
            self._refuse_gradient(name)

    def check_weights(self, step: int) -> None:
        """Raise :class:`NotFiniteError` if the weights themselves are not finite, which no batch is to blame for."""
        for name, parameter in self.core.runtime.parameters.items():
            if not _looks_finite(parameter.detach()):
                self._refuse_weights(name, step)

    def check_weights_of_blocks(self, owned: Mapping[str, nn.Parameter]) -> None:
        """Raise :class:`NotFiniteError` if weights are not finite that a form would spread over a whole block.

        That is for pulls at which nobody looks: one after the step, and on an accelerator also one before it. Only a
        task's first step waits for an accelerator, or asks other ranks about their parts.
        """
        core = self.core
        if core.state.driving.form.elementwise or not core.state.strength or not core.state.is_anchored:
            return
        # While a CUDA graph is captured nothing can be read from the device.
        first = not core.task.steps and not is_capturing()
        always = {n for n, p in owned.items() if is_looked_at(p) and not is_sharded(p)}
        asked = {n: p for n, p in owned.items() if (core.state.pulled_after if n in always else first)}
        lost = [name for name, parameter in asked.items() if not is_finite(parameter)]
        # A rank sees its own parts only: if it raised alone, the others would wait for it.
        every = core.runtime.ranks.each(lambda: lost) if any(map(is_sharded, asked.values())) else [lost]
        for name in chain.from_iterable(every):
            self._refuse_weights(name, core.task.steps.get(name, 0) + 1)

    def _refuse_gradient(self, name: str) -> NoReturn:
        step = self.core.task.steps.get(name, 0) + 1
        # First: of weights that are not finite no gradient is, and then the batch is not to blame.
        self.check_weights(step)
        raise NotFiniteError(
            f"The gradient of {name!r} holds a NaN or an infinity at step {step} of this task. The step was not taken "
            "and nothing was recorded. Look at this batch and its loss; zero the gradients to go on without it."
            + self.explained()
        )

    def explained(self) -> str:
        """Return what a monitor knows of why something is not finite; empty if none does."""
        return next(filter(None, (monitor.explain_nonfinite() for monitor in self.monitors)), "")

    def _refuse_weights(self, name: str, step: int) -> NoReturn:
        raise NotFiniteError(
            f"The weights {name!r} themselves are not finite any more, at step {step} of this task; the step was not "
            f"taken. Training has diverged, by a learning rate or a strength (here {self.core.state.strength_text}) "
            "that is too large: restore an earlier checkpoint. No batch is at fault."
        )


def _looks_finite(gradient: Tensor | None) -> bool:
    """Return whether a gradient is finite, as far as can be seen without waiting for an accelerator."""
    return gradient is None or gradient.device.type != "cpu" or is_finite(gradient)
