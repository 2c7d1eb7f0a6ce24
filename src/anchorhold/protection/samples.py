"""The old samples by which a model is protected: measured on, distilled, and kept aside to see what is lost."""

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from anchorhold.engine.batches import (
    Batch,
    Forward,
    call_model,
    check_batches,
    describe_inputs,
    explain_failed_call,
    read_batch,
)
from anchorhold.engine.conventions import BatchReader
from anchorhold.engine.conventions.huggingface import text_writer, tokens_of
from anchorhold.engine.isolation import evaluation_mode
from anchorhold.engine.scores import IGNORED
from anchorhold.errors import BatchError
from anchorhold.own_text import OwnText

ASIDE = 8
"""Of so many samples one is kept aside."""
MOST_ASIDE = 64
MEASURED_AT_ONCE = 8


@dataclasses.dataclass(frozen=True)
class Samples:
    """Old samples, as batches of a user's."""

    measured: list[Any]
    distilled: list[Any]
    aside: list[Any]
    scored: float
    """T, the scored tokens or positions of a sample on average."""
    per: str
    """What a prediction is of: ``"token"`` or ``"sample"``."""
    origin: str
    """Where they come from, in words."""
    text: OwnText | None = None
    """Own text, which is saved with a checkpoint; old data is not."""


def of_own_text(text: OwnText, measured: int, batch_size: int, origin: str) -> Samples:
    """Return a text's pieces, the last ones aside, which are as good as any since each is drawn by itself."""
    count = len(text)
    kept = min(MOST_ASIDE, max(1, count // ASIDE))
    if count - kept < 1:
        raise BatchError(f"An own text of {count} piece; expected a few hundred, some of which are kept aside.")
    told, aside = (OwnText(pieces, text.kind, text.tokenizer) for pieces in (text.pieces[:-kept], text.pieces[-kept:]))
    few = OwnText(told.pieces[:measured], text.kind, text.tokenizer)
    scored = sum(len(piece.written) for piece in few.pieces) / len(few)
    return Samples(
        few.batches(MEASURED_AT_ONCE),
        told.batches(batch_size),
        aside.batches(MEASURED_AT_ONCE),
        scored,
        "token",
        origin,
        text,
    )


def of_batches(
    model: nn.Module, batches: Iterable[Any], samples: int, measured: int, batch_size: int, forward: Forward | None
) -> Samples:
    """Return the first samples of batches, every eighth aside.

    Raise :class:`BatchError` for no batches, and for a batch whose labels leave everything out.
    """
    whole = list(_first(batches, samples))
    if not whole:
        raise BatchError(
            "The old data has no batch; expected a few hundred samples of what the model is to keep. Was an iterator "
            "used up before?"
        )
    kept, told = [], []
    seen = 0
    for batch in whole:
        aside = torch.tensor([(seen + place) % ASIDE == ASIDE - 1 for place in range(batch.size)])
        seen += batch.size
        kept += _rows(batch, aside.nonzero().squeeze(-1))
        told += _rows(batch, (~aside).nonzero().squeeze(-1))
    if not kept or not told:
        raise BatchError(
            f"The old data has {seen} sample{'' if seen == 1 else 's'}; expected {ASIDE} at least, of which one is "
            "kept aside, and better a few hundred. Of text files, each `length` tokens are a sample."
        )
    scored, per = scored_positions(model, told + kept, forward)
    few = list(_first([_given(batch) for batch in told], measured))
    distilled = [_given(b[first : first + batch_size]) for b in told for first in range(0, b.size, batch_size)]
    origin = f"{seen:,} samples of old data"
    return Samples([_given(b) for b in few], distilled, [_given(b) for b in kept], scored, per, origin)


def scored_positions(model: nn.Module, batches: Sequence[Batch], forward: Forward | None) -> tuple[float, str]:
    """Return T, how many positions of a sample are scored on average, and what a position is.

    Raise :class:`BatchError` if nothing of a batch is scored.
    """
    writer = text_writer(model)
    reader = BatchReader(next(model.parameters()).device, model)
    scored, samples, shape = 0, 0, None
    for place, raw in enumerate(batches):
        batch = reader.read(_given(raw))
        if writer is not None and forward is None and isinstance(batch.inputs, Mapping) and "input_ids" in batch.inputs:
            # A language model's labels follow from its tokens: nothing has to be run.
            tokens = batch.inputs.get("decoder_input_ids", batch.inputs["input_ids"])
            outputs = torch.empty(*tokens.shape, max(tokens_of(writer), default=2), device="meta")
        else:
            if shape is None:
                shape = output_shape(model, batch, forward)
            outputs = torch.empty(batch.size, *shape[1:], device="meta")
        labels = batch.labels_for(outputs)
        positions = outputs.shape[:-1].numel()
        own = positions
        if labels is not None and not labels.is_floating_point() and labels.numel() == positions:
            own = int(labels.ne(IGNORED).sum())
        if not own:
            raise BatchError(
                f"Old data: in batch {place} every label is {IGNORED}, or padding, so that nothing of it is scored. "
                "Leave such batches out, or give labels; without any, a language model's tokens are its labels."
            )
        scored, samples = scored + own, samples + batch.size
    return scored / samples, "sample" if scored == samples else "token"


def output_shape(model: nn.Module, batch: Batch, forward: Forward | None) -> torch.Size:
    """Return the shape of the outputs of a batch. Raise BatchError if the model cannot be called with it."""
    with (
        explain_failed_call(
            lambda why: (
                f"The model failed on old data of {describe_inputs(batch.inputs)} ({why}). Give batches as it takes "
                "them, or say how it is called: forward=lambda model, inputs: ..."
            )
        ),
        evaluation_mode(model, model.parameters()),
    ):
        return (forward or call_model)(model, batch.inputs).shape


def _first(batches: Iterable[Any], most: int) -> Iterable[Batch]:
    """Yield the first samples of batches, on the CPU."""
    left = most
    for raw in check_batches(batches):
        batch = raw if isinstance(raw, Batch) else read_batch(raw, torch.device("cpu"))
        yield batch[: min(left, batch.size)] if batch.size > left else batch
        left -= min(left, batch.size)
        if not left:
            return


def _rows(batch: Batch, chosen: Tensor) -> list[Batch]:
    return [batch.rows(chosen)] if len(chosen) else []


def _given(batch: Batch) -> Any:
    """Return a batch as a user gives it."""
    if batch.targets is None:
        return batch.inputs if batch.named else (batch.inputs,)
    return {**batch.inputs, "labels": batch.targets} if batch.named else (batch.inputs, batch.targets)
