r"""How far one Gaussian is from another, each weight by itself.

.. math::
    \mathrm{KL}(q\,\|\,p) = \tfrac12 \sum \Bigl[ v_p - v_q + e^{v_q - v_p} + (\mu_q - \mu_p)^2 e^{-v_p} - 1 \Bigr],
    \qquad v = \log \sigma^2

Nguyen, Li, Bui and Turner 2018, "Variational Continual Learning" (arXiv 1710.10628), equation 4. On the means it is a
quadratic hold of importance :math:`1/(2\sigma_p^2)`.
"""

from typing import NamedTuple

import torch
from torch import Tensor


class Gaussian(NamedTuple):
    """Independent Gaussians, one a weight."""

    mean: Tensor
    log_variance: Tensor


def kl(q: Gaussian, p: Gaussian) -> Tensor:
    """Return KL(q‖p), summed over all weights."""
    wider = q.log_variance - p.log_variance
    away = (q.mean - p.mean).square() * torch.exp(-p.log_variance)
    return 0.5 * (wider.exp() - wider + away - 1).sum()


def kl_gradient(q: Gaussian, p: Gaussian) -> Gaussian:
    """Return its gradient by q's means and logarithms of variances."""
    by_mean = (q.mean - p.mean) * torch.exp(-p.log_variance)
    return Gaussian(by_mean, 0.5 * torch.expm1(q.log_variance - p.log_variance))
