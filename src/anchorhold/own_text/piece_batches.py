"""Writing some pieces side by side.

Their beginnings may differ in length, and nothing is padded: all are read up to the end of the shortest beginning, and
from there on token by token, a longer beginning's own tokens first and then those that are drawn. So every piece lies
at the positions that it would have by itself, for any kind of model, also for those that know of no attention mask.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from anchorhold.errors import NotFiniteError
from anchorhold.own_text.model_reader import Writer
from anchorhold.own_text.text_folder import Piece
from anchorhold.seeding import generator_for
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
    """Return the token at which the sum of the probabilities ``[N, V]`` so far passes a number in [0, 1).

    Each piece brings numbers of its own, so what it becomes depends on no other piece: neither on how many are written
    at once nor on which were written before.
    """
    so_far = probabilities.cumsum(-1)
    total = so_far[:, -1:]
    chosen = torch.searchsorted(so_far, uniform.to(so_far).unsqueeze(-1) * total, right=True).squeeze(-1)
    # Rounding may take the product to the total itself, which lies beyond the last token that has a probability.
    last = (so_far >= total).int().argmax(-1)
    return torch.minimum(chosen, last)


@dataclass(frozen=True)
class Manner:
    """How pieces are written.

    Args:
        seed: of all pieces; each has numbers of its own, from the seed and its number.
        length: tokens that are written at most.
        ends: tokens that end a piece.
        choice: how tokens are drawn.
        top: of how many most probable tokens the log-probabilities are kept at each token.
    """

    seed: int
    length: int
    ends: tuple[int, ...]
    choice: Choice
    top: int = 0


def write_pieces(writer: Writer, numbers: list[int], beginnings: list[list[int]], manner: Manner) -> list[Piece]:
    """Return the pieces of these numbers, which begin as given."""
    device, length = writer.device, manner.length
    begun = torch.tensor([len(beginning) for beginning in beginnings], device=device)
    tokens = torch.zeros(len(numbers), int(begun.max()) + length, dtype=torch.long, device=device)
    for row, beginning in zip(tokens, beginnings, strict=True):
        row[: len(beginning)] = torch.tensor(beginning, device=device)
    # By which tokens are drawn: those of a piece depend on the seed and its own number alone.
    generators = [generator_for(manner.seed, "own text", number) for number in numbers]
    uniform = torch.stack([torch.rand(length, generator=each, dtype=torch.float64) for each in generators])
    uniform = uniform.to(device, widest_dtype(device))
    written = _Written(len(numbers), length, manner.top, device)
    ends = torch.tensor(manner.ends, dtype=torch.long, device=device)
    ended = torch.zeros_like(begun, dtype=torch.bool)
    read, place = writer.reader(), int(begun.min())
    while True:
        logits = read(tokens[:, :place])
        rows = ((begun <= place) & ~ended).nonzero().squeeze(-1)
        if len(rows):
            step = place - begun[rows]
            own = _finite(logits[rows], rows, step, numbers)
            chosen = drawn(manner.choice.probabilities(own), uniform[rows, step])
            tokens[rows, place] = chosen
            written.add(rows, step, chosen, own)
            ended[rows] = torch.isin(chosen, ends) | (step + 1 == length)
            if bool(ended.all()):
                break
        place += 1
    return [
        Piece(number, tokens[row, : len(beginning) + int(count)].cpu(), len(beginning), *written.of(row))
        for row, (number, beginning, count) in enumerate(zip(numbers, beginnings, written.counts, strict=True))
    ]


class _Written:
    """What is known of tokens beside themselves: how probable the model found them, and which were most probable."""

    def __init__(self, rows: int, length: int, top: int, device: torch.device) -> None:
        self.counts = torch.zeros(rows, dtype=torch.long, device=device)
        self.chosen = torch.zeros(rows, length, device=device)
        self.top = top
        self.top_tokens = torch.zeros(rows, length, top, dtype=torch.long, device=device)
        self.top_values = torch.zeros(rows, length, top, device=device)

    def add(self, rows: Tensor, step: Tensor, chosen: Tensor, logits: Tensor) -> None:
        log_q = torch.log_softmax(logits.to(widest_dtype(logits.device)), -1)
        self.counts[rows] += 1
        self.chosen[rows, step] = log_q.gather(-1, chosen.unsqueeze(-1)).squeeze(-1).float()
        if self.top:
            values, tokens = log_q.topk(self.top, -1)
            self.top_tokens[rows, step], self.top_values[rows, step] = tokens, values.float()

    def of(self, row: int) -> tuple[Tensor, Tensor | None, Tensor | None]:
        count = int(self.counts[row])
        kept = self.chosen[row, :count].cpu()
        if not self.top:
            return kept, None, None
        return kept, self.top_tokens[row, :count].cpu(), self.top_values[row, :count].cpu()


def _finite(logits: Tensor, rows: Tensor, step: Tensor, numbers: list[int]) -> Tensor:
    """Return logits of which a softmax exists: −∞ forbids a token, but not all of them, and nothing is NaN or +∞."""
    fine = logits.amax(-1).isfinite() & ~logits.isnan().any(-1)
    if not bool(fine.all()):
        where = int((~fine).nonzero()[0])
        raise NotFiniteError(
            f"The model's logits for token {int(step[where]) + 1} of piece {numbers[int(rows[where])]} are not finite, "
            "so no token can be drawn. Look at its weights; in 16 bits they may have overflown: write with the model "
            "in bfloat16 or float32."
        )
    return logits
