r"""Derivatives of softmax outputs that keep their digits when the network is nearly certain.

With :math:`q_y = 1 - 10^{-12}` the difference :math:`1 - q_y` has lost all its digits in float32 and most in float64,
yet it is the whole gradient. Every difference here is therefore written as a sum of positive terms. All functions
take logits of shape ``[..., C]`` and compute in float64 where the device has it: the outputs of a network are small.
"""

import torch
from torch import Tensor

from anchorhold.tensors.storage import widest_dtype

PIECE = 2**22
"""How many logits a softmax is worked out for at once: in float64 and with its intermediates, those of a whole sequence
over a large vocabulary would be many times as large as the network's output.
"""


def widened(logits: Tensor) -> Tensor:
    """Return the logits in float64, or in float32 on a device that has no float64."""
    return logits.to(widest_dtype(logits.device))


def are_probabilities(logits: Tensor) -> bool:
    """Whether what is given as logits ``[M, C]`` of several classes has had a softmax already, by its first rows."""
    some = logits[:64].detach().float()
    close = 1e-3 if torch.finfo(logits.dtype).eps < 1e-4 else 2e-2
    return bool(some.shape[-1] > 1 and (some >= 0).all() and ((some.sum(-1) - 1).abs() < close).all())


class Softmax:
    """The probabilities ``q`` of some logits, and their complements, each to full relative precision."""

    def __init__(self, logits: Tensor) -> None:
        self.logits = widened(logits)
        self.q = self.logits.softmax(-1)
        self.top = self.logits.argmax(-1, keepdim=True)

    def complement(self) -> Tensor:
        """Return ``1 − q``: for the likeliest label as the sum of all others, which cannot cancel."""
        others = self.q.scatter(-1, self.top, 0.0).sum(-1, keepdim=True)
        return (1 - self.q).scatter(-1, self.top, others)

    def label_gradients(self, labels: Tensor) -> Tensor:
        """Return ``∂ log q(y) / ∂z = e_y − q`` for labels of shape ``[..., L]``, as ``[..., L, C]``."""
        shape = (*labels.shape, self.q.shape[-1])
        gradients = self.q.unsqueeze(-2).expand(shape).neg()
        return gradients.scatter(-1, labels.unsqueeze(-1), self.complement().gather(-1, labels).unsqueeze(-1))

    def factor(self, start: int, stop: int) -> Tensor:
        r"""Return columns ``start`` to ``stop`` of a triangular S with :math:`SS^T = \mathrm{diag}(q) - qq^T`.

        The Fisher information of the logits has rank C−1, so C−1 columns carry all of it. With the tails
        :math:`t_k = \sum_{j\ge k} q_j` its Cholesky factor is, without any subtraction of like numbers,

        .. math:: S_{kk} = \sqrt{q_k t_{k+1} / t_k}, \quad S_{jk} = -q_j \sqrt{q_k / (t_k t_{k+1})} \;\; (j > k).

        Returned as ``[..., stop − start, C]``, one column a row.
        """
        q = self.q
        tails = q.flip(-1).cumsum(-1).flip(-1)
        here, after = tails[..., start:stop], tails[..., start + 1 : stop + 1]
        # A tail that underflowed to 0 has no probability left to share out: its column is 0.
        alive = after > 0
        # Two roots, since the product of two tiny tails would underflow.
        share = (q[..., start:stop] / torch.where(alive, here, 1.0)).sqrt()
        scale = torch.where(alive, share / torch.where(alive, after, 1.0).sqrt(), 0.0)
        columns = -q.unsqueeze(-2) * scale.unsqueeze(-1)
        index = torch.arange(start, stop, device=q.device)
        below = torch.arange(q.shape[-1], device=q.device) > index.unsqueeze(-1)
        columns = columns * below
        diagonal = (scale * after).unsqueeze(-1)
        return columns.scatter(-1, index.view(-1, 1).expand(*scale.shape, 1), diagonal)

    def squared_norm_gradient(self) -> Tensor:
        r"""Return :math:`\partial \|q\|^2/\partial z_k = 2 q_k (q_k - \|q\|^2)`.

        With the likeliest label m, :math:`q_m - q_k = -q_m\,\mathrm{expm1}(z_k - z_m)` is exact, and
        :math:`q_m - \|q\|^2 = \sum_j q_j (q_m - q_j)` is a sum of positive terms.
        """
        lead = self._lead()
        spread = (self.q * lead).sum(-1, keepdim=True)
        return 2 * self.q * (spread - lead)

    def squared_maximum_gradient(self) -> Tensor:
        r"""Return :math:`\partial q_m^2/\partial z = 2 q_m^2 (e_m - q)` for the likeliest label m."""
        q_m = self.q.gather(-1, self.top)
        return 2 * q_m.square() * self.label_gradients(self.top).squeeze(-2)

    def _lead(self) -> Tensor:
        z_m = self.logits.gather(-1, self.top)
        return -self.q.gather(-1, self.top) * torch.expm1(self.logits - z_m)
