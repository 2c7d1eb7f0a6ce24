r"""Real values with independent normal noise of variance 1: a regression.

.. math:: \log p(y \mid z) = -\tfrac12 \|y - z\|^2 + \text{const}, \qquad \frac{\partial \log p}{\partial z} = y - z

With y drawn from the model, :math:`y - z = \varepsilon \sim N(0, I)`, so the Fisher information of the outputs is the
identity: a sample's own is :math:`\sum_k (\partial z_k / \partial\theta)^2`, one row :math:`e_k` an output. For one
output the mean absolute gradient is :math:`E|\varepsilon| = \sqrt{2/\pi}` times that of the output; for several it is
no sum over rows. Noise of another variance divides every importance by it, as the strength does.
"""

import math

import torch
from torch import Tensor

from anchorhold.engine.phi import Phi
from anchorhold.engine.scores.likelihoods.base import (
    EveryOutput,
    one_output_each,
    refuse_endless,
    refuse_joint_absolute,
)
from anchorhold.engine.scores.positions import IGNORED, Positions, RowMaker
from anchorhold.engine.scores.softmax import widened
from anchorhold.errors import ConfigurationError

NO_PROBABILITIES = (
    "A regression's outputs are values and have no probabilities (a Gaussian likelihood, from {why}). Use "
    "MAS(output='logits'), which takes the outputs as they are."
)


class Gaussian(EveryOutput):
    """Independent real values."""

    softmax = False
    expected = "the values of a regression (a Gaussian likelihood)"

    def _counted(self, values: Tensor) -> Tensor | None:
        """Return which values count: of real numbers all do, of whole ones those that are not marked."""
        return None if values.is_floating_point() else values.long() != IGNORED

    def exact(self, z: Tensor, phi: Phi, positions: Positions) -> tuple[int, RowMaker]:
        """Return one row an output."""
        scale = 1.0
        if phi.name != "square":
            refuse_joint_absolute(z, positions, "with normal noise is no finite sum of gradients")
            scale = math.sqrt(2 / math.pi)
        refuse_endless(z, "outputs", z.shape[-1], positions)
        return z.shape[-1], lambda i, j, places: one_output_each(torch.full_like(z[:, places], scale), i, j)

    def sampled(self, z: Tensor, draws: int, generator: torch.Generator | None) -> RowMaker:
        """Return rows of normal noise."""
        dtype = torch.promote_types(z.dtype, torch.float32)
        noise = torch.randn((draws, *z.shape), dtype=dtype, device=z.device, generator=generator)
        return lambda i, j, places: noise[i:j, :, places]

    def true(self, z: Tensor, values: Tensor) -> RowMaker:
        """Return the residuals."""
        return lambda i, j, places: (widened(values[:, places]) - widened(z[:, places])).unsqueeze(0)[i:j]

    def norm_gradient(self, z: Tensor, dominant: bool) -> Tensor:
        """Refuse: there are no probabilities."""
        raise ConfigurationError(NO_PROBABILITIES.format(why="likelihood='gaussian'"))
