"""Pearson correlations of several quantities at once, from a stream of pieces too large to keep together."""

import torch
from torch import Tensor

_ROUNDING = 16 * torch.finfo(torch.float64).eps
"""A quantity that varies by less than this part of its mean is constant up to rounding."""


class CoMoments:
    r"""Means and co-moments :math:`\sum_n (x_{in}-\bar x_i)(x_{jn}-\bar x_j)` of what was added so far, in float64.

    Each piece is centred on its own mean before anything is squared, and pieces are joined by Chan's formula, so that
    nothing cancels however far the means are from 0.

    Args:
        quantities: how many there are.
        device: where the pieces are.
    """

    def __init__(self, quantities: int, device: torch.device | str = "cpu") -> None:
        self.count = 0
        self.mean = torch.zeros(quantities, dtype=torch.float64, device=device)
        self.products = torch.zeros(quantities, quantities, dtype=torch.float64, device=device)

    def add(self, values: Tensor) -> None:
        """Add a piece, ``[quantities, n]``."""
        added = values.shape[1]
        if not added:
            return
        values = values.double()
        mean = values.mean(1)
        centred = values - mean[:, None]
        apart = mean - self.mean
        count = self.count + added
        self.products += centred @ centred.T + torch.outer(apart, apart) * (self.count * added / count)
        self.mean += apart * (added / count)
        self.count = count

    @property
    def sums(self) -> Tensor:
        """The sum of each quantity."""
        return self.mean * self.count

    def correlations(self) -> Tensor:
        """Return all correlations, ``[quantities, quantities]``; NaN for a quantity that does not vary."""
        moments = self.products / self.count
        deviation = moments.diagonal().sqrt()
        deviation = deviation.where(deviation > _ROUNDING * self.mean.abs(), torch.nan)
        return (moments / deviation / deviation[:, None]).clamp(-1, 1)
