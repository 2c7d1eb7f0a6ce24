r"""Derivatives of sigmoid outputs that keep their digits when the network is nearly certain.

As with a softmax, :math:`1 - p` is the whole gradient where p is nearly 1, so it is never a difference: it is
:math:`\sigma(-z)`. All functions take logits of any shape, work on each by itself, and compute in float64 where the
device has it.
"""

import torch
from torch import Tensor

from anchorhold.engine.scores.softmax import widened


class Sigmoid:
    """The probabilities ``p = σ(z)`` of some logits and their complements ``σ(−z)``, to full relative precision."""

    def __init__(self, logits: Tensor) -> None:
        self.logits = widened(logits)
        self.p = self.logits.sigmoid()
        self.complement = self.logits.neg().sigmoid()

    def variance(self) -> Tensor:
        """Return ``p(1 − p)``, the variance of each label."""
        return self.p * self.complement

    def deviation(self) -> Tensor:
        """Return ``√(p(1 − p))``, the standard deviation of each label, by two roots: their product may underflow."""
        return self.p.sqrt() * self.complement.sqrt()

    def label_gradients(self, labels: Tensor) -> Tensor:
        """Return ``∂ log q(t) / ∂z = t − p = t(1 − p) − (1 − t)p`` for labels t in 0..1."""
        t = widened(labels)
        return t * self.complement - (1 - t) * self.p

    def squared_norm_gradient(self) -> Tensor:
        """Return ``∂‖p‖²/∂z_k = 2p_k²(1 − p_k)``."""
        return 2 * self.p.square() * self.complement

    def squared_maximum_gradient(self) -> Tensor:
        """Return the gradient of the largest p of the last dimension, squared."""
        top = self.logits.argmax(-1, keepdim=True)
        gradient = self.squared_norm_gradient()
        return torch.zeros_like(gradient).scatter(-1, top, gradient.gather(-1, top))
