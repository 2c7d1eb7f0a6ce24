"""Losses of a model, by token and by document, with standard errors over documents."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.utils.checkpoint import checkpoint

from studies.pretrained.tokens import NOTHING, Rows

TOGETHER = 2048
"""Positions whose logits are in memory at once: with 262,144 kinds of tokens they take 2 GiB in float32."""


def hidden_states(model: nn.Module, rows: Tensor) -> Tensor:
    """Return what a model's output layer reads, for each token but the last of each row."""
    inputs = rows[:, :-1].clamp(min=0)
    found: Tensor = cast("Any", model).model(input_ids=inputs, use_cache=False).last_hidden_state
    return found


def token_losses(model: nn.Module, rows: Tensor) -> Tensor:
    """Return the loss in nats of each token but the first of each row; 0 after a document's end.

    The logits are computed again in the backward pass, so that only some of them are in memory at once.
    """
    hidden = hidden_states(model, rows)
    targets = rows[:, 1:].long()
    head = cast("nn.Module", model.lm_head)

    def losses(some: Tensor, wanted: Tensor) -> Tensor:
        logits: Tensor = head(some).float()
        return cross_entropy(logits, wanted, ignore_index=NOTHING, reduction="none")

    pieces = zip(hidden.flatten(0, 1).split(TOGETHER), targets.flatten().split(TOGETHER), strict=True)
    found = [cast("Tensor", checkpoint(losses, *piece, use_reentrant=False)) for piece in pieces]
    return torch.cat(found).view(targets.shape)


def divergence(model: nn.Module, reference: nn.Module, rows: Tensor) -> Tensor:
    """Return the mean of KL(reference‖model) in nats a token."""
    new = hidden_states(model, rows).flatten(0, 1)
    with torch.no_grad():
        old = hidden_states(reference, rows).flatten(0, 1)
    head, old_head = cast("nn.Module", model.lm_head), cast("nn.Module", reference.lm_head)

    def summed(now: Tensor, then: Tensor) -> Tensor:
        before = old_head(then).float().log_softmax(-1)
        after = head(now).float().log_softmax(-1)
        total: Tensor = (before.exp() * (before - after)).sum()
        return total

    pieces = zip(new.split(TOGETHER), old.split(TOGETHER), strict=True)
    total = [cast("Tensor", checkpoint(summed, *piece, use_reentrant=False)) for piece in pieces]
    return torch.stack(total).sum() / len(new)


@dataclass(frozen=True)
class DocumentLosses:
    """The losses of a text's documents.

    Args:
        nats: by document, the sum over its predicted tokens.
        tokens, sizes: by document, how many tokens are predicted, and how many bytes they stand for.
    """

    nats: Sequence[float]
    tokens: Sequence[int]
    sizes: Sequence[int]

    def per_token(self) -> tuple[float, float]:
        """Return nats a token over all documents, and the standard error."""
        return ratio(self.nats, self.tokens)

    def per_byte(self) -> tuple[float, float]:
        """Return bits a byte over all documents, and the standard error."""
        value, error = ratio(self.nats, self.sizes)
        return value / math.log(2), error / math.log(2)

    def change(self, before: "DocumentLosses") -> tuple[float, float]:
        """Return how many nats a token more than before, and the standard error: each document is its own control."""
        return ratio([now - then for now, then in zip(self.nats, before.nats, strict=True)], self.tokens)


def ratio(sums: Sequence[float], counts: Sequence[int]) -> tuple[float, float]:
    """Return Σs / Σc over documents, and the standard error of this ratio (Cochran 1977, section 6.4)."""
    total, many = sum(counts), len(counts)
    value = sum(sums) / total
    spread = sum((s - value * c) ** 2 for s, c in zip(sums, counts, strict=True))
    return value, math.sqrt(spread * many / (many - 1)) / total if many > 1 else math.nan


@torch.no_grad()
def document_losses(model: nn.Module, rows: Rows, together: int = 64) -> DocumentLosses:
    """Return a model's losses on documents."""
    sums: list[float] = []
    for some in rows.tokens.split(together):
        with torch.autocast(some.device.type, torch.bfloat16, enabled=some.is_cuda):
            found = token_losses(model, some)
        sums += found.double().sum(1).tolist()
    counts = (rows.tokens[:, 1:] != NOTHING).sum(1).tolist()
    return DocumentLosses(sums, counts, rows.sizes.tolist())


def evaluate(model: nn.Module, texts: Mapping[str, Rows]) -> dict[str, DocumentLosses]:
    """Return a model's losses on several texts."""
    model.eval()
    found = {name: document_losses(model, rows) for name, rows in texts.items()}
    model.train()
    return found
