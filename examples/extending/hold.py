"""A hold of one's own: harder on the side that training never saw (Park et al. 2019, arXiv 1908.02984).

A task's training came to its solution from somewhere, and what the loss does on that side was seen; what it does on the
other side is anybody's guess. Beside the guard's own pull, weights that leave the anchor to the unseen side are pulled
once more. Registered, it works by name:

    holdfast run permuted-digits --measure SI --hold asymmetric --with examples/extending/hold.py
"""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

import holdfast
from holdfast.holds import Held, Hold


@holdfast.register_hold("asymmetric")
class Asymmetric(Hold):
    r"""Adds :math:`(a-1)\,c\,\Omega(\theta-\theta^*)^2` where :math:`(\theta-\theta^*)(\theta_0-\theta^*) < 0`.

    Args:
        factor: a, how many times as hard the unseen side is held, both pulls together.
    """

    def __init__(self, factor: float = 3.0) -> None:
        super().__init__()
        if not factor >= 1:
            raise holdfast.ConfigurationError(f"factor={factor!r}: expected a number not below 1, which adds nothing.")
        self.factor = factor
        self.start: dict[str, Tensor] = {}
        self.side: dict[str, Tensor] = {}

    def begin_task(self, held: Held) -> None:
        """Remember where training comes from."""
        self.start = {name: parameter.detach().clone() for name, parameter in held.parameters.items()}

    def end_task(self, held: Held) -> None:
        """Keep on which side of the new anchor that was."""
        self.side = {name: torch.sign(start - held.anchor[name]) for name, start in self.start.items()}

    def value(self, held: Held) -> Tensor | None:
        """Return the loss of the further pull."""
        terms = [(omega * d.square()).sum() for omega, d in self._unseen(held).values()]
        return (self.factor - 1) * held.strength * torch.stack(terms).sum() if terms else None

    def gradient(self, held: Held) -> Mapping[str, Tensor]:
        """Return its gradient."""
        twice = 2 * (self.factor - 1) * held.strength
        return {name: twice * omega * d for name, (omega, d) in self._unseen(held).items()}

    def _unseen(self, held: Held) -> dict[str, tuple[Tensor, Tensor]]:
        """Return Ω and θ − θ* of every parameter, 0 where training came from."""
        omegas = {name: omega for matrix in held.importance.values() for name, omega in matrix.diagonal().items()}
        found = {}
        for name, parameter in held.parameters.items():
            if name in self.side and name in omegas:
                d = parameter - held.anchor[name]
                found[name] = omegas[name], torch.where(d * self.side[name] < 0, d, 0.0)
        return found

    def settings(self) -> dict[str, Any]:
        """Return what a state was made with."""
        return {"factor": self.factor}

    def state(self) -> dict[str, Tensor]:
        """Return both memories by parameter."""
        return {f"{kind}/{name}": t for kind in ("start", "side") for name, t in getattr(self, kind).items()}

    def load_state(self, state: Mapping[str, Tensor]) -> None:
        """Take both over."""
        for kind in ("start", "side"):
            setattr(self, kind, {k.partition("/")[2]: t for k, t in state.items() if k.startswith(f"{kind}/")})
