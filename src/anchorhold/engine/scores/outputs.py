r"""A network's outputs as positions with classes, and as probabilities that keep their digits.

The gradients of a softmax score are proportional to :math:`1 - q`. With :math:`q_y = 1 - 10^{-12}` that difference has
lost all its digits in float32 and most in float64. Every difference here is therefore written as a sum of positive
terms, and everything is computed in float64 where the device has it: the outputs of a network are small.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_map

from anchorhold.engine.batches import Batch, Forward, Replaceable
from anchorhold.tensors.storage import widest_dtype

PIECE = 2**22
"""How many logits a softmax is worked out for at once: in float64 and with its intermediates, those of a whole sequence
over a large vocabulary would be many times as large as the network's output.
"""


def in_wider_dtype(logits: Tensor) -> Tensor:
    """Return the logits in float64, or in float32 on a device that has no float64."""
    return logits.to(widest_dtype(logits.device))


def are_probabilities(logits: Tensor) -> bool:
    """Return whether logits ``[M, C]`` of several classes are probabilities already, by their first rows."""
    some = logits[:64].detach().float()
    close = 1e-3 if torch.finfo(logits.dtype).eps < 1e-4 else 2e-2
    return bool(some.shape[-1] > 1 and (some >= 0).all() and ((some.sum(-1) - 1).abs() < close).all())


class Softmax:
    """The probabilities ``q`` of logits ``[..., C]`` and their complements, each to full relative precision."""

    def __init__(self, logits: Tensor) -> None:
        self.logits = in_wider_dtype(logits)
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
        z_m = self.logits.gather(-1, self.top)
        lead = -self.q.gather(-1, self.top) * torch.expm1(self.logits - z_m)
        spread = (self.q * lead).sum(-1, keepdim=True)
        return 2 * self.q * (spread - lead)

    def squared_maximum_gradient(self) -> Tensor:
        r"""Return :math:`\partial q_m^2/\partial z = 2 q_m^2 (e_m - q)` for the likeliest label m."""
        q_m = self.q.gather(-1, self.top)
        return 2 * q_m.square() * self.label_gradients(self.top).squeeze(-2)


class Sigmoid:
    """The probabilities ``p = σ(z)`` of logits of any shape, and ``1 − p = σ(−z)``, to full relative precision."""

    def __init__(self, logits: Tensor) -> None:
        self.logits = in_wider_dtype(logits)
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
        t = in_wider_dtype(labels)
        return t * self.complement - (1 - t) * self.p

    def squared_norm_gradient(self) -> Tensor:
        """Return ``∂‖p‖²/∂z_k = 2p_k²(1 − p_k)``."""
        return 2 * self.p.square() * self.complement

    def squared_maximum_gradient(self) -> Tensor:
        """Return the gradient of the largest p of the last dimension, squared."""
        top = self.logits.argmax(-1, keepdim=True)
        gradient = self.squared_norm_gradient()
        return torch.zeros_like(gradient).scatter(-1, top, gradient.gather(-1, top))


IGNORED = -100
"""The label of a position that does not count, as in :func:`torch.nn.functional.cross_entropy`."""

RowMaker = Callable[[int, int, slice], Tensor]
"""``make(start, stop, places)`` returns rows ``start`` to ``stop`` of some positions, as ``[k, N, places, C]``."""

Positions = Literal["joint", "separate"]


def flattened(tensor: Tensor, class_dim: int) -> Tensor:
    """Return outputs, or targets of their shape, as ``[N, P, C]``."""
    moved = tensor.movedim(class_dim, -1)
    return moved.reshape(len(moved), -1, moved.shape[-1])


def without_classes(outputs: Tensor, class_dim: int) -> torch.Size:
    """Return the outputs' shape without the dimension of their classes: that of integer labels."""
    kept = list(outputs.shape)
    del kept[class_dim]
    return torch.Size(kept)


def position_pieces(z: Tensor, rows: int = 1) -> Iterator[slice]:
    """Yield runs of positions of logits ``[N, P, C]``, so short that their softmax is small, ``rows`` times."""
    across = max(1, PIECE // max(1, rows * len(z) * z.shape[-1]))
    for first in range(0, z.shape[1], across):
        yield slice(first, first + across)


def counted_positions(batch: Batch, outputs: Tensor) -> Tensor | None:
    """Return which positions of the outputs count: those with a label, or else those that are not masked out."""
    shape = outputs.shape[:-1]
    labels = batch.labels_for(outputs)
    if labels is not None and labels.shape == shape and not labels.is_floating_point():
        return labels != IGNORED
    mask = batch.inputs.get("attention_mask") if isinstance(batch.inputs, Mapping) else None
    return mask.bool() if isinstance(mask, Tensor) and mask.shape == shape else None


LARGEST_LOGIT = 8.0
"""Rounding of float32 logits up to about this size leaves the importance five digits with room to spare."""

MOST_WEIGHTS = 2**26
"""Of a model that is computed with in float64, half a gigabyte of them."""


def precise_outputs(
    model: nn.Module, forward: Forward, inputs: Any, outputs: Tensor, logits: Iterable[Tensor]
) -> Tensor:
    """Return the outputs, from a forward pass in float64 where the float32 one has too few digits for a softmax.

    The *absolute* rounding error of a logit becomes the *relative* error of the importance: in float32 that is |z|
    times 10⁻⁷ and more, too much where every sample is classified with large logits. Only the outputs are computed once
    more in float64; the backward pass has no such amplification. A model of more than ``MOST_WEIGHTS`` numbers would
    take memory that its users have not got, and many GPUs are slow at float64, so it keeps the digits that it has: five
    or so, less those of the logits.
    """
    outputs = outputs.detach()
    if outputs.dtype != torch.float32 or outputs.device.type == "mps" or not _is_amplified(logits):
        return outputs
    replaceable = Replaceable(model, forward)
    if sum(tensor.numel() for _, tensor in replaceable.slots()) > MOST_WEIGHTS:
        return outputs
    try:
        with torch.no_grad():
            doubled = {slot: _double(tensor) for slot, tensor in replaceable.slots()}
            wide = replaceable.call_with(doubled, tree_map(_double, inputs))
    except Exception:  # noqa: BLE001 (a model that takes float32 alone says so with whatever error its author chose)
        return outputs  # which are right, only with fewer digits
    return wide if isinstance(wide, Tensor) and wide.shape == outputs.shape else outputs


def _is_amplified(logits: Iterable[Tensor]) -> bool:
    """Return whether the typical logit is large, where samples count by their share in the importance: by 1 − q."""
    weighted = total = 0.0
    for some in logits:
        softmax = Softmax(some)
        uncertainty = softmax.complement().gather(-1, softmax.top)
        largest = some.double().masked_fill(some.isinf(), 0.0).abs().amax(-1, keepdim=True)
        weighted += float((uncertainty * largest).sum())
        total += float(uncertainty.sum())
    return weighted > LARGEST_LOGIT * total


def _double(leaf: Any) -> Any:
    return leaf.detach().double() if isinstance(leaf, Tensor) and leaf.is_floating_point() else leaf
