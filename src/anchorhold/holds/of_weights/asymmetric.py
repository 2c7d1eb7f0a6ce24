r"""Harder on the side that training never saw: what the quadratic hold lacks there.

Beside the guard's own :math:`c\,\Omega d^2`, weights that leave the anchor to the unseen side are pulled by
:math:`c\,((a-1)\,\Omega + \epsilon)\,d^2`, so that both together are :math:`c\,(a\,\Omega + \epsilon)\,d^2`. Park,
Hong, Han and Lee 2019, arXiv 1908.02984; the formula stands with the measure, in :mod:`anchorhold.measures.asymmetric`.
"""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from anchorhold.errors import ConfigurationError
from anchorhold.forms import DiagonalMatrix, Form
from anchorhold.holds.base import Held, Hold, displacement
from anchorhold.measures.asymmetric import overestimate
from anchorhold.settings import number
from anchorhold.tensors.sharding import whole_sums
from anchorhold.tensors.storage import to_compute

_START, _SIDE = "start/", "side/"


class Asymmetric(Hold):
    r"""Adds :math:`c\,((a-1)\,\Omega + \epsilon)(\theta-\theta^*)^2` where :math:`(\theta-\theta^*)(\theta(0)-\theta^*) < 0`.

    θ(0) is where the last task began. c and Ω are the guard's own, whatever its measure: with ``"ALASSO"`` it is
    asymmetric SI whole.

    >>> guard = Guard(model, "ALASSO", strength=1.0, holds=[Asymmetric(factor=1.8)])

    Args:
        factor: a, how many times as hard the unseen side is held, both pulls together.
        epsilon: ε, by which weights of no importance are held there too.
    """  # noqa: E501 (a formula)

    by_weight = True

    def __init__(self, factor: float = 1.8, epsilon: float = 1e-6) -> None:
        super().__init__()
        expected = "a number not below 1, which holds both sides alike"
        self.factor = float(number("factor", factor, expected, lambda given: given >= 1))
        self.epsilon = float(number("epsilon", epsilon, "a number not below 0", lambda given: given >= 0))
        self.start: dict[str, Tensor] = {}
        """θ(0) of the current task."""
        self.side: dict[str, Tensor] = {}
        """The sign of θ(0) − θ* of the last one, in 8 bits."""

    def check(self, form: Form) -> None:
        """Refuse a form in which weights have no importance each, and so no sides."""
        if not form.elementwise:
            raise ConfigurationError(
                f"The hold {self.name!r} with the form {form.name!r}: it has two sides of each weight, and that form "
                "holds weights together. Take the form 'diagonal', or leave the hold out."
            )

    def told(self) -> str:
        return f"{self.factor:g} times as hard on the side that training did not come from"

    def begin_task(self, held: Held) -> None:
        """Remember where training comes from."""
        self.start = {name: parameter.detach().clone() for name, parameter in held.parameters.items()}

    def end_task(self, held: Held) -> None:
        """Keep on which side of the new anchor that was; for a weight that has not moved, the one from before."""
        sides = dict(self.side)
        for name, start in self.start.items():
            anchor = held.anchor.get(name)
            if anchor is not None and anchor.shape == start.shape:
                came = torch.sign(start - to_compute(anchor, start)).to(torch.int8)
                known = sides.get(name)
                sides[name] = came if known is None else torch.where(came == 0, to_compute(known, came), came)
        self.side, self.start = sides, {}

    def value(self, held: Held) -> Tensor | None:
        terms = [(more * d.square()).sum() for more, d in self._unseen(held).values()]
        if not terms:
            return None
        device = next(iter(held.parameters.values())).device
        return held.strength * torch.stack([term.to(device) for term in whole_sums(terms)]).sum()

    def gradient(self, held: Held) -> Mapping[str, Tensor]:
        return {name: 2 * held.strength * more * d for name, (more, d) in self._unseen(held).items()}

    def _unseen(self, held: Held) -> dict[str, tuple[Tensor, Tensor]]:
        """Return what Ω lacks on the unseen side, and θ − θ*, of every parameter that is held."""
        found = {}
        for matrix in held.importance.values():
            name = matrix.block.parameters[0]
            if held.strength and isinstance(matrix, DiagonalMatrix) and name in held.parameters and name in self.side:
                d = displacement(matrix, held.parameters, held.anchor)[name]
                omega, side = to_compute(matrix.omega, d).to(d.dtype), to_compute(self.side[name], d)
                found[name] = overestimate(omega, d.detach(), side, self.factor, self.epsilon), d
        return found

    def forget(self, name: str) -> None:
        self.start.pop(name, None)
        self.side.pop(name, None)

    def settings(self) -> dict[str, Any]:
        return {"factor": self.factor, "epsilon": self.epsilon}

    def state(self) -> dict[str, Tensor]:
        kept = ((_START, self.start), (_SIDE, self.side))
        return {f"{kind}{name}": tensor for kind, tensors in kept for name, tensor in tensors.items()}

    def load_state(self, state: Mapping[str, Tensor]) -> None:
        self.start, self.side = (
            {key.removeprefix(kind): tensor for key, tensor in state.items() if key.startswith(kind)}
            for kind in (_START, _SIDE)
        )
