"""A hold of one's own: back to where everything began (L2-SP; Li, Grandvalet and Davoine 2018, arXiv 1802.01483).

A model that was pretrained is pulled to the weights that it came with, whatever it has learned since, beside the
guard's own pull to the last task's solution. Registered, it works by name:

    anchorhold-lab run permuted-digits --measure SI --hold start-point --with examples/extending/hold.py
"""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

import anchorhold
from anchorhold.holds import Held, Hold


@anchorhold.register_hold("start-point")
class StartPoint(Hold):
    r"""Adds :math:`s\,|\theta-\theta_0|^2`, with :math:`\theta_0` the weights before the very first step.

    Args:
        strength: s.
        after: from which task on it pulls, counted from 0.
    """

    def __init__(self, strength: float = 0.001, after: int = 1) -> None:
        super().__init__(strength)
        if after < 0:
            raise anchorhold.errors.ConfigurationError(
                f"after={after!r}: expected a number of tasks, 0 for all of them."
            )
        self.after = after
        self.start: dict[str, Tensor] = {}

    def begin_task(self, held: Held) -> None:
        """Remember the weights that are new."""
        new = {name: parameter for name, parameter in held.parameters.items() if name not in self.start}
        self.start |= {name: parameter.detach().clone() for name, parameter in new.items()}

    def value(self, held: Held) -> Tensor | None:
        """Return the loss."""
        terms = [d.square().sum() for d in self._moved(held).values()]
        return self.strength * torch.stack(terms).sum() if terms else None

    def gradient(self, held: Held) -> Mapping[str, Tensor]:
        """Return its gradient."""
        return {name: 2 * self.strength * d for name, d in self._moved(held).items()}

    def _moved(self, held: Held) -> dict[str, Tensor]:
        """Return θ − θ₀ of every parameter, once it pulls."""
        if held.tasks < self.after:
            return {}
        return {name: p - self.start[name] for name, p in held.parameters.items() if name in self.start}

    def settings(self) -> dict[str, Any]:
        """Return what a state was made with."""
        return {"after": self.after}

    def state(self) -> dict[str, Tensor]:
        """Return where everything began, by parameter."""
        return dict(self.start)

    def load_state(self, state: Mapping[str, Tensor]) -> None:
        """Take it over."""
        self.start = dict(state)

    def forget(self, name: str) -> None:
        """Let go of a parameter, which then begins anew."""
        self.start.pop(name, None)
