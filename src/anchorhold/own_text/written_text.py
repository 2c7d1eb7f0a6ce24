"""Text that a model wrote: its pieces, as batches, as texts, and in a few words."""

import itertools
import os
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence
from torch.utils.data import Dataset

from anchorhold.engine.scores.outputs import IGNORED
from anchorhold.errors import ConfigurationError
from anchorhold.own_text.text_folder import Kind, Piece, read_folder
from anchorhold.settings import choice, whole_number

Labels = Literal["written", "all"]

_GRAM = 4
"""Tokens of a run that is looked for again (Welleck et al. 2020, arXiv 1908.04319)."""


@dataclass(repr=False)
class OwnText(Dataset[dict[str, Tensor]]):
    """Pieces of text that a model wrote, in the order of their numbers; ``print()`` says how varied they are.

    As a data set it has rows of different lengths, ``input_ids``, ``attention_mask`` and ``labels``; :meth:`batches`
    has them padded, as guards and holds take them.
    """

    pieces: list[Piece]
    kind: Kind = field(default_factory=Kind)
    tokenizer: Any = None

    @classmethod
    def load(cls, store: str | os.PathLike[str], tokenizer: Any = None) -> "OwnText":
        """Return the text in a folder that :func:`write_text` was given as ``store=``; no model is needed for it."""
        pieces, kind = read_folder(store)
        return cls(pieces, kind, tokenizer)

    def __len__(self) -> int:
        return len(self.pieces)

    @property
    def empty(self) -> int:
        """How many pieces end with the first token that was written."""
        return _empty([piece.written.tolist() for piece in self.pieces], self.kind.ends)

    def __getitem__(self, index: int) -> dict[str, Tensor]:
        piece = self.pieces[index]
        labels = _labels(piece, "written")
        return {"input_ids": piece.tokens, "attention_mask": torch.ones_like(piece.tokens), "labels": labels}

    def batches(self, batch_size: int = 8, *, labels: Labels = "written", top: bool = False) -> list[Any]:
        """Return the pieces as batches, padded on the right.

        Those of one of Hugging Face's models are mappings with ``input_ids``, ``attention_mask`` and ``labels`` that
        lie where the tokens do. Those of any other model are pairs: tokens, and for each the one that comes next.

        Args:
            batch_size: pieces in a batch; the last one may have fewer.
            labels: ``"written"`` counts what the model wrote alone, and marks beginnings with −100; ``"all"`` counts
                beginnings too.
            top: whether ``top_tokens`` and ``top_log_probabilities`` are among what the mapping has, ``[N, T, k]``,
                each where the label that they speak of lies; 0 and 0.0 where nothing was written. A model does not take
                them, so a loss has to take them out.
        """
        size = whole_number("batch_size", batch_size, "a whole number of at least 1", least=1)
        choice("labels", labels, ("written", "all"))
        if top and not self.kind.named:
            raise ConfigurationError(
                "top=True for a model whose batches are pairs, which have no place for more. Read them from .pieces."
            )
        if top and any(piece.top_tokens is None for piece in self.pieces):
            raise ConfigurationError("top=True, but no most probable tokens were kept: write with keep_top=20, say.")
        return [self._batch(self.pieces[i : i + size], labels, top) for i in range(0, len(self.pieces), size)]

    @property
    def texts(self) -> list[str]:
        """Each piece as text, beginnings included, without the marks of beginning and end."""
        return self._decoded(piece.tokens for piece in self.pieces)

    @property
    def written_texts(self) -> list[str]:
        """What was written of each piece: without its prompt."""
        return self._decoded(piece.written for piece in self.pieces)

    def __repr__(self) -> str:
        if not self.pieces:
            return "OwnText: no pieces"
        pieces, ends = self.pieces, self.kind.ends
        written = [piece.written.tolist() for piece in pieces]
        count = sum(map(len, written))
        distinct = len({tuple(piece.tokens.tolist()) for piece in pieces})
        ended = sum(own[-1] in ends for own in written)
        how = f"{ended:,} ended by themselves" if ends else "without an end token"
        mean = float(torch.cat([piece.log_probabilities for piece in pieces]).double().mean())
        repeated = [_repeated(own) for own in written]
        circles = sum(share > 0.5 for share in repeated)
        lines = [
            f"OwnText: {len(pieces):,} pieces, {distinct:,} of them distinct",
            f"{count:,} tokens written, {count / len(pieces):.1f} a piece; {how}",
            f"{mean:.2f} nats a token on average, by the model's own log-probabilities",
            (
                f"{100 * sum(repeated) / len(repeated):.1f} % of the runs of {_GRAM} tokens had been there before in "
                f"their piece; pieces of which more than half had, which go round in circles: {circles:,}"
            ),
        ]
        if empty := _empty(written, ends):
            lines.append(f"{empty:,} empty: their first token ends them")
        return "\n  ".join(lines)

    def _batch(self, pieces: Sequence[Piece], labels: Labels, top: bool) -> Any:
        tokens = pad_sequence([p.tokens for p in pieces], batch_first=True, padding_value=self.kind.padding)
        wanted = pad_sequence([_labels(p, labels) for p in pieces], batch_first=True, padding_value=IGNORED)
        if not self.kind.named:
            return tokens[:, :-1], wanted[:, 1:]
        mask = pad_sequence([torch.ones_like(p.tokens) for p in pieces], batch_first=True)
        batch = {"input_ids": tokens, "attention_mask": mask, "labels": wanted}
        if top:
            for name in ("top_tokens", "top_log_probabilities"):
                # With zeros in front, for the tokens that were given.
                kept = [(p.begun, getattr(p, name)) for p in pieces]
                rows = [torch.cat([own.new_zeros(begun, own.shape[1]), own]) for begun, own in kept]
                batch[name] = pad_sequence(rows, batch_first=True)
        return batch

    def _decoded(self, tokens: Iterable[Tensor]) -> list[str]:
        if self.tokenizer is None:
            raise ConfigurationError(
                "These pieces have no tokenizer: give tokenizer= where they are written or loaded."
            )
        return [self.tokenizer.decode(own.tolist(), skip_special_tokens=True) for own in tokens]


def _labels(piece: Piece, labels: Labels) -> Tensor:
    counted = piece.tokens.clone()
    if labels == "written":
        counted[: piece.begun] = IGNORED
    return counted


def _empty(written: Sequence[Sequence[int]], ends: Collection[int]) -> int:
    """Return how many texts their first token ends."""
    return sum(len(own) == 1 and own[0] in ends for own in written)


def _repeated(tokens: Sequence[int]) -> float:
    """Return which share of a text's runs of tokens had been there before."""
    runs = list(zip(*(itertools.islice(tokens, start, None) for start in range(_GRAM)), strict=False))
    return 1 - len(set(runs)) / len(runs) if runs else 0.0
