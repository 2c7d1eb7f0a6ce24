r"""The sums that a report is made of: the loss and the divergence of every document, in nats.

.. math:: L_d = -\sum_t \log p(s_t \mid s_{<t}), \qquad
    K_d = \sum_t KL\big(p_{old}(\cdot \mid s_{<t}) \,\|\, p_{new}(\cdot \mid s_{<t})\big)

over the scored tokens of document d. Sums are kept in float64, whatever the models are in.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils.rnn import pad_sequence

from anchorhold.errors import ModelError, NotFiniteError
from anchorhold.evaluation.windows import Encoded, Window, batches_of, windows_of
from anchorhold.own_text.model_reader import Writer
from anchorhold.tensors.divergence import divergences
from anchorhold.tensors.storage import free_memory

_CPU_BYTES = 1 << 30
_GPU_SHARE = 0.25
"""Of the memory that is free, for the logits of a batch."""
_KEPT_SHARE = 0.25
"""Of the memory that is free beside two models, for logits that are asked for again."""
_COPIES = 3
"""Of the logits of a position that exist at once, in 4 bytes."""
_ROWS = 512
"""Positions whose probabilities are computed at once."""


class KeptLogits:
    """The logits that a model gave, by the tokens that it read: it reads them once for several models after.

    Args:
        room: the bytes that they may take. What has no room is read again.
    """

    def __init__(self, room: int) -> None:
        self._room = room
        self._of: dict[tuple[bytes, int], Tensor] = {}

    @classmethod
    def beside(cls, model: nn.Module, device: torch.device) -> "KeptLogits":
        """Return what has room beside a model and another of its size."""
        free, own = free_memory(device), sum(each.nbytes for each in model.parameters())
        return cls(_CPU_BYTES if free is None else int(_KEPT_SHARE * max(0, free - own)))

    def find(self, batch: Sequence[Window]) -> Tensor | None:
        """Return the logits of a batch's positions that count, if those of every window are there."""
        found = [self._of.get(_content(window)) for window in batch]
        kept = [each for each in found if each is not None]
        return torch.cat(kept) if len(kept) == len(batch) else None

    def add(self, batch: Sequence[Window], logits: Tensor) -> None:
        """Keep the logits of a batch, if they have room."""
        if logits.nbytes > self._room:
            return
        self._room -= logits.nbytes
        counts = [len(window.inputs) - window.skipped for window in batch]
        self._of.update(zip(map(_content, batch), logits.split(counts), strict=True))


def _content(window: Window) -> tuple[bytes, int]:
    """Return what the logits of a window follow from: the tokens that are read, and how many do not count."""
    return window.inputs.numpy().tobytes(), window.skipped


@dataclass(frozen=True)
class Reader:
    """A model that is scored.

    Args:
        name: what the model is called.
        writer: how the model is asked.
        tokenizer: of its texts, or ``None``.
        vocabulary: how many tokens its logits are over.
        context: the longest text that it says it can read.
        kept: where its logits are kept, if they are asked for again.
    """

    name: str
    writer: Writer
    tokenizer: Any
    vocabulary: int
    context: int | None
    kept: KeptLogits | None = None

    @property
    def model(self) -> nn.Module:
        """The model itself."""
        return self.writer.model


@dataclass(frozen=True)
class Sums:
    """The sums of some documents, each ``[documents]``.

    Args:
        before: the loss of the model before, in nats.
        after: that of the model after.
        kl: KL(p_old‖p_new); ``None`` where it does not exist.
    """

    before: Tensor
    after: Tensor
    kl: Tensor | None


def sums_together(
    documents: Sequence[Encoded], before: Reader, after: Reader, context: int, done: Callable[[int], None]
) -> Sums:
    """Return the sums of documents that are the same tokens for both models.

    Args:
        documents: at least one.
        before: the model before.
        after: the model after.
        context: the length of windows.
        done: called with how many tokens were scored by now, after each batch.
    """
    paired = before.vocabulary == after.vocabulary

    def values(batch: Sequence[Window], counted: Tensor, targets: Tensor) -> list[Tensor]:
        logits = [_logits(reader, batch, documents, counted) for reader in (before, after)]
        found = []
        for part in torch.arange(len(targets)).split(_ROWS):
            old, new = (each[part.to(each.device)] for each in logits)
            own = [_losses(each, targets[part]) for each in (old, new)]
            own += [divergences(old, new)] if paired else []
            found.append([value.double().cpu() for value in own])
        return [torch.cat(each) for each in zip(*found, strict=True)]

    total = _run(documents, (before, after), context, values, done)
    for row, reader in zip(total, (before, after, after), strict=False):
        _refuse_not_finite(row, documents, reader)
    return Sums(total[0], total[1], total[2].clamp(min=0) if paired else None)


def losses_alone(documents: Sequence[Encoded], reader: Reader, context: int, done: Callable[[int], None]) -> Tensor:
    """Return the loss of every document, where the two models read other tokens."""

    def values(batch: Sequence[Window], counted: Tensor, targets: Tensor) -> list[Tensor]:
        logits = _logits(reader, batch, documents, counted)
        parts = torch.arange(len(targets)).split(_ROWS)
        return [torch.cat([_losses(logits[part.to(logits.device)], targets[part]).double().cpu() for part in parts])]

    (total,) = _run(documents, (reader,), context, values, done)
    _refuse_not_finite(total, documents, reader)
    return total


Values = Callable[[Sequence[Window], Tensor, Tensor], list[Tensor]]
"""Takes a batch, which of its positions ``[N, T]`` count, and their targets; returns some values of each position."""


def _run(
    documents: Sequence[Encoded], readers: Sequence[Reader], context: int, values: Values, done: Callable[[int], None]
) -> list[Tensor]:
    """Return the sums by document of some values, from batches as large as memory allows; halve one that is larger."""
    waiting = batches_of(windows_of(documents, context), _positions(readers))[::-1]
    total: list[Tensor] = []
    scored = 0
    while waiting:
        batch = waiting.pop()
        lengths = torch.tensor([len(window.inputs) for window in batch])
        skipped = torch.tensor([window.skipped for window in batch])
        place = torch.arange(int(lengths.max()))
        counted = (place < lengths[:, None]) & (place >= skipped[:, None])
        targets = pad_sequence([window.targets for window in batch], batch_first=True)[counted]
        own = torch.tensor([window.document for window in batch])[:, None].expand_as(counted)[counted]
        try:
            found = values(batch, counted, targets)
        except torch.OutOfMemoryError as error:
            if len(batch) == 1:
                raise ModelError(
                    f"{len(batch[0].inputs)} tokens and {len(readers)} models are more than the memory holds. Give a "
                    "smaller context=, --context in a shell, or dtype=torch.bfloat16."
                ) from error
            half = len(batch) // 2
            waiting += [batch[half:], batch[:half]]
            continue
        total = total or [torch.zeros(len(documents), dtype=torch.float64) for _ in found]
        for row, value in zip(total, found, strict=True):
            row.index_add_(0, own, value)
        scored += len(targets)
        done(scored)
    return total


def _positions(readers: Sequence[Reader]) -> int:
    """Return how many positions fit into a batch, of which there is one window at least."""
    device = readers[0].writer.device
    free = _GPU_SHARE * torch.cuda.mem_get_info(device)[0] if device.type == "cuda" else _CPU_BYTES
    return int(free / (4 * _COPIES * sum(reader.vocabulary for reader in readers)))


def _logits(reader: Reader, batch: Sequence[Window], documents: Sequence[Encoded], counted: Tensor) -> Tensor:
    """Return the logits of the positions that count, one after another."""
    known = None if reader.kept is None else reader.kept.find(batch)
    if known is not None:
        return known
    # Padding stands on the right, where no token before it sees it: the models read from left to right.
    tokens = pad_sequence([window.inputs for window in batch], batch_first=True).to(reader.writer.device)
    try:
        logits = reader.writer.logits(tokens)
    except torch.OutOfMemoryError:
        raise
    except (RuntimeError, IndexError, ValueError) as error:
        place = documents[batch[0].document].place
        raise ModelError(
            f"{reader.name} failed to read {tokens.shape[1]} tokens of {place} ({type(error).__name__}: {error}). If "
            "that is more than the model was made for, give a smaller context=, --context in a shell."
        ) from error
    found = logits[counted.to(logits.device)]
    if reader.kept is not None:
        reader.kept.add(batch, found)
    return found


def _losses(logits: Tensor, targets: Tensor) -> Tensor:
    wide = logits.to(torch.promote_types(logits.dtype, torch.float32))
    return F.cross_entropy(wide, targets.to(logits.device), reduction="none")


def _refuse_not_finite(total: Tensor, documents: Sequence[Encoded], reader: Reader) -> None:
    for value, document in zip(total.tolist(), documents, strict=True):
        if not abs(value) < float("inf"):
            raise NotFiniteError(
                f"The loss of {reader.name} on {document.place} is {value}; expected a number. Its weights have "
                "diverged, or 16 bits overflow: try dtype=float32, or give another checkpoint."
            )
