"""A plain GPT, over bytes or other tokens."""

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn.functional import gelu, scaled_dot_product_attention

BYTES = 256


class Block(nn.Module):
    """Attention to what came before, then two layers, each added to what came in."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.attention_norm = nn.LayerNorm(width)
        self.qkv = nn.Linear(width, 3 * width)
        self.attended = nn.Linear(width, width)
        self.mlp_norm = nn.LayerNorm(width)
        self.wide = nn.Linear(width, 4 * width)
        self.narrow = nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        n, places, width = x.shape
        qkv = self.qkv(self.attention_norm(x)).view(n, places, 3, self.heads, width // self.heads)
        query, key, value = qkv.permute(2, 0, 3, 1, 4)
        attended = scaled_dot_product_attention(query, key, value, is_causal=True)
        x = x + self.attended(attended.transpose(1, 2).reshape(n, places, width))
        outputs: Tensor = x + self.narrow(gelu(self.wide(self.mlp_norm(x))))
        return outputs


class GPT(nn.Module):
    """Predicts the next byte or token at every place: ``[N, T]`` of them in, ``[N, T, vocabulary]`` logits out."""

    def __init__(self, width: int, layers: int, heads: int, context: int, vocabulary: int = BYTES) -> None:
        super().__init__()
        self.bytes = nn.Embedding(vocabulary, width)
        self.places = nn.Embedding(context, width)
        self.blocks = nn.ModuleList(Block(width, heads) for _ in range(layers))
        self.norm = nn.LayerNorm(width)
        self.logits = nn.Linear(width, vocabulary)
        for name, parameter in self.named_parameters():
            if parameter.ndim > 1:
                # What a block adds starts small, the more so the more blocks add.
                added = name.endswith(("attended.weight", "narrow.weight"))
                nn.init.normal_(parameter, std=0.02 / (2 * layers) ** 0.5 if added else 0.02)
            elif name.endswith("bias"):
                nn.init.zeros_(parameter)

    def forward(self, text: Tensor, call: Callable[[nn.Module, Tensor], Tensor] = nn.Module.__call__) -> Tensor:
        """Return the logits; ``call(block, x)`` runs a block, by default as it is."""
        x = self.bytes(text) + self.places(torch.arange(text.shape[1], device=text.device))
        for block in self.blocks:
            x = call(block, x)
        outputs: Tensor = self.logits(self.norm(x))
        return outputs
