"""Small models whose next token's distribution is known, or that show one fault each."""

import torch
from torch import nn

TOKENS = 6


class Chain(nn.Module):
    """The next token depends on the last one alone: row a of ``table`` has the logits after token a."""

    def __init__(self, tokens=TOKENS, seed=0, context=None):
        super().__init__()
        generator = torch.Generator().manual_seed(seed)
        self.table = nn.Parameter(torch.randn(tokens, tokens, generator=generator, dtype=torch.float64))
        self.context = context
        self.calls = []

    def forward(self, tokens):
        if self.context is not None and tokens.shape[1] > self.context:
            raise IndexError("index out of range in self")
        self.calls.append(tuple(tokens.shape))
        return self.table[tokens]


class Recurrent(nn.Module):
    """A language model without a cache, whose whole past matters."""

    def __init__(self, tokens=TOKENS, width=8):
        super().__init__()
        torch.manual_seed(0)
        self.tokens = nn.Embedding(tokens, width, dtype=torch.float64)
        self.body = nn.GRU(width, width, batch_first=True, dtype=torch.float64)
        self.drop = nn.Dropout(0.5)
        self.head = nn.Linear(width, tokens, dtype=torch.float64)

    def forward(self, tokens):
        return self.head(self.drop(self.body(self.tokens(tokens))[0])) * 4


def same(one, other):
    """Whether two texts have the same pieces, and found them equally probable."""
    assert [piece.number for piece in one.pieces] == [piece.number for piece in other.pieces]
    for mine, yours in zip(one.pieces, other.pieces, strict=True):
        assert torch.equal(mine.tokens, yours.tokens)
        assert mine.begun == yours.begun
        torch.testing.assert_close(mine.log_probabilities, yours.log_probabilities, rtol=0, atol=1e-6)
        for name in ("top_tokens", "top_log_probabilities"):
            kept, also = getattr(mine, name), getattr(yours, name)
            assert (kept is None) == (also is None)
            if kept is not None:
                torch.testing.assert_close(kept, also, rtol=0, atol=1e-6)
    return True
