r"""Folded maps that stay where they are while the statistics under them move (Lee et al. 2020, arXiv 2004.07507).

From one step to the next, a forward pass over new data takes μ and σ to μ′ and σ′, and W̃ and b̃ with them, by much where
a new task begins. No gradient sees that, and a pull that has to make up for it disturbs what is learned. So scale and
shift are written for the new statistics before each step,

.. math:: \gamma' = \frac{\sigma'}{\sigma}\,\gamma, \qquad \beta' = \beta + \frac{\gamma}{\sigma}(\mu' - \mu),

with which W̃ and b̃ are the same as before: what moves them is the optimiser alone.
"""

from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.modules.batchnorm import _BatchNorm as BatchNorm

from anchorhold.guard.batch_norm.folding import Folding
from anchorhold.guard.distributed.ranks import Ranks


class _Noted(NamedTuple):
    """A batch norm's statistics at the last step, and how often its scale and shift had been written to."""

    mu: Tensor
    sigma: Tensor
    versions: tuple[int, int]


class SteadyMaps:
    """What is known of the statistics of folded batch norms since the last step."""

    def __init__(self) -> None:
        self._noted: dict[BatchNorm, _Noted] = {}

    def note(self, folding: Folding, ranks: Ranks) -> None:
        """Take the statistics as they are."""
        folding.agree(ranks)
        self._noted = {pair.norm: _now(pair.norm) for pair in folding.pairs.values()}

    @torch.no_grad()
    def carry_over(self, folding: Folding, ranks: Ranks) -> None:
        """Write scales and shifts for the statistics of now, unless others have written to them since the last step.

        Who loads or draws weights means them as they are. Those that are not trained stay too.
        """
        folding.agree(ranks)
        for pair in folding.pairs.values():
            norm, before = pair.norm, self._noted.get(pair.norm)
            now = _now(norm)
            held = all(role in pair.names for role in ("scale", "shift"))
            trained = held and norm.weight.requires_grad and norm.bias.requires_grad
            if trained and before is not None and before.versions == now.versions:
                norm.bias.add_((now.mu - before.mu) * norm.weight / before.sigma)
                norm.weight.mul_(now.sigma / before.sigma)
            self._noted[norm] = _now(norm)

    def stepped(self) -> None:
        """Take note that the optimiser has moved scales and shifts."""
        self._noted = {norm: noted._replace(versions=_versions(norm)) for norm, noted in self._noted.items()}


def _now(norm: BatchNorm) -> _Noted:
    assert norm.running_mean is not None and norm.running_var is not None
    return _Noted(norm.running_mean.clone(), (norm.running_var + norm.eps).sqrt(), _versions(norm))


def _versions(norm: BatchNorm) -> tuple[int, int]:
    return (norm.weight._version, norm.bias._version) if norm.affine else (0, 0)
