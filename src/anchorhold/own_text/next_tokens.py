"""The next token of each piece, drawn from logits with a number that the piece brings along.

A piece's numbers are its own, so what it becomes depends on no other piece: neither on how many are written at once nor
on which were written before.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from anchorhold.tensors.storage import widest_dtype


@dataclass(frozen=True)
class Choice:
    """How a token is chosen among all.

    Args:
        temperature: logits are divided by it; 1 draws from the model's own distribution.
        top_k: only as many of the most probable tokens are drawn from; 0 for all.
        top_p: only the fewest most probable tokens that have this probability together are drawn from, the nucleus
            (Holtzman et al. 2020, arXiv 1904.09751); 1 for all.
    """

    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0

    def probabilities(self, logits: Tensor) -> Tensor:
        """Return the probabilities ``[N, V]`` that tokens are drawn with."""
        q = torch.softmax(logits.to(widest_dtype(logits.device)) / self.temperature, -1)
        if not self.top_k and self.top_p >= 1:
            return q
        most, order = q.sort(dim=-1, descending=True, stable=True)
        # A token is in the nucleus if those before it have less than top_p together; the first one always is.
        kept = most.cumsum(-1) - most < self.top_p
        kept[..., 0] = True
        if self.top_k:
            kept[..., self.top_k :] = False
        q = q * torch.zeros_like(kept).scatter_(-1, order, kept)
        return q / q.sum(-1, keepdim=True)


def drawn(probabilities: Tensor, uniform: Tensor) -> Tensor:
    """Return the token at which the sum of the probabilities ``[N, V]`` so far passes a number in [0, 1)."""
    so_far = probabilities.cumsum(-1)
    total = so_far[:, -1:]
    chosen = torch.searchsorted(so_far, uniform.to(so_far).unsqueeze(-1) * total, right=True).squeeze(-1)
    # Rounding may take the product to the total itself, which lies beyond the last token that has a probability.
    last = (so_far >= total).int().argmax(-1)
    return torch.minimum(chosen, last)
