r"""Labels that are each 0 or 1, independent of each other: several labels a sample, or one logit for two classes.

.. math:: \log q(t \mid z) = \sum_k \log \sigma\bigl((2t_k - 1) z_k\bigr), \qquad
          \frac{\partial \log q}{\partial z_k} = t_k - p_k, \quad p = \sigma(z)

The Fisher information of the outputs is diagonal, :math:`p_k(1 - p_k) = \sigma(z_k)\,\sigma(-z_k)`: one row
:math:`\sqrt{p_k(1 - p_k)}\, e_k` an output. For one output the mean absolute gradient is :math:`2p(1 - p)` times that
of the logit; for K of them it has :math:`2^K` terms. One logit z is the same as the softmax of the logits 0 and z.
"""

import torch
from torch import Tensor

from anchorhold.engine.phi import Phi
from anchorhold.engine.scores.likelihoods.base import (
    EveryOutput,
    one_output_each,
    refuse_endless,
    refuse_joint_absolute,
)
from anchorhold.engine.scores.positions import IGNORED, Positions, RowMaker, position_pieces
from anchorhold.engine.scores.sigmoid import Sigmoid


class Bernoulli(EveryOutput):
    """Independent labels, each 0 or 1."""

    expected = "labels that are each 0 or 1 (a Bernoulli likelihood)"

    def _counted(self, values: Tensor) -> Tensor:
        """Return which labels count: those that are not marked."""
        return (values if values.is_floating_point() else values.long()) != IGNORED

    def exact(self, z: Tensor, phi: Phi, positions: Positions) -> tuple[int, RowMaker]:
        """Return one row an output."""
        refuse_endless(z, "outputs", z.shape[-1], positions)
        if phi.name == "square":
            return z.shape[-1], lambda i, j, places: one_output_each(Sigmoid(z[:, places]).deviation(), i, j)
        refuse_joint_absolute(z, positions, f"that are each 0 or 1 has 2^{z.shape[1] * z.shape[-1]} terms")
        return 1, lambda i, j, places: (2 * Sigmoid(z[:, places]).variance()).unsqueeze(0)[i:j]

    def sampled(self, z: Tensor, draws: int, generator: torch.Generator | None) -> RowMaker:
        """Return ``t − p`` for labels t drawn from the model."""
        drawn = torch.empty((draws, *z.shape), dtype=torch.bool, device=z.device)
        for here in position_pieces(z):
            p = Sigmoid(z[:, here]).p
            for draw in drawn:
                draw[:, here] = torch.bernoulli(p, generator=generator).bool()
        return lambda i, j, places: Sigmoid(z[:, places]).label_gradients(drawn[i:j, :, places])

    def true(self, z: Tensor, values: Tensor) -> RowMaker:
        """Return ``t − p`` for the labels given."""
        return lambda i, j, places: Sigmoid(z[:, places]).label_gradients(values[:, places]).unsqueeze(0)[i:j]

    def norm_gradient(self, z: Tensor, dominant: bool) -> Tensor:
        """Return the gradient of ``‖p‖²``, or of the largest p's square."""
        sigmoid = Sigmoid(z)
        return sigmoid.squared_maximum_gradient() if dominant else sigmoid.squared_norm_gradient()

    def as_classes(self, z: Tensor) -> Tensor:
        """Return each logit as those of two classes, of which the other has 0."""
        return torch.nn.functional.pad(z.reshape(-1, 1), (1, 0))
