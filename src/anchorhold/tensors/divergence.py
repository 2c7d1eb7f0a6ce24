r"""How far a model's outputs have moved from what they were: the divergence of the old predictions from the new.

.. math:: KL(p_\text{old} \,\|\, p_\text{new}) = \sum_y p_\text{old}(y)\,(\log p_\text{old}(y) - \log p_\text{new}(y))

in nats, the mean over samples or, where outputs have several positions, over those that count.
"""

import torch
from torch import Tensor


def divergence(old: Tensor, new: Tensor, counted: Tensor | None = None, temperature: float = 1.0) -> Tensor:
    """Return the mean KL(p_old‖p_new) of logits ``[N, ..., C]``, differentiable in the new ones.

    Args:
        old: the logits as they were.
        new: the logits as they are.
        counted: which positions ``[N, ...]`` count; all by default.
        temperature: T, by which both are divided first: a higher one looks at the unlikely classes too.
    """
    return mean_over(divergences(old, new, temperature), counted)


def divergences(old: Tensor, new: Tensor, temperature: float = 1.0) -> Tensor:
    """Return the KL(p_old‖p_new) of every position, ``[N, ...]``."""
    wide = torch.promote_types(new.dtype, torch.float32)
    then = (old.detach().to(new.device, wide) / temperature).log_softmax(-1)
    now = (new.to(wide) / temperature).log_softmax(-1)
    # A class that is ruled out (a logit of −∞) in both adds nothing; 0·(−∞ + ∞) would be no number.
    return torch.where(then.exp() > 0, then.exp() * (then - now), 0.0).sum(-1)


def mean_over(values: Tensor, counted: Tensor | None) -> Tensor:
    """Return the mean of the values that count; 0 where none does."""
    if counted is None:
        return values.mean()
    weights = counted.to(values.device, values.dtype)
    return torch.where(counted.to(values.device), values, 0.0).sum() / weights.sum().clamp(min=1)
