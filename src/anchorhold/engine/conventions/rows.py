"""Rows of Hugging Face batches that are not one sample each: packed documents, and completions of prompts.

TRL's packing and padding-free collators lay several documents in one row, with positions that start anew with every
document (``position_ids``), or with what says where documents begin (``cu_seq_lens_q``, ``seq_idx``), so that none
attends to another. Measured as one sample, the documents' gradients would be added up before they are squared; so each
document becomes a row.

TRL's trainers for preferences give prompts and completions; ``completion_mask`` says which tokens are a completion's.
DPO's batches have the chosen completions first and then, of the same prompts, the rejected ones; KTO's have a ``label``
for each, whether it is wanted. A data measure looks at what the model has learned to write, so prompts do not count,
and neither do completions that it was to unlearn.
"""

import itertools
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from anchorhold.engine.batches import Batch, read_batch
from anchorhold.engine.scores.outputs import IGNORED
from anchorhold.errors import BatchError

BOUNDARIES = ("cu_seq_lens_q", "cu_seq_lens_k", "cu_seq_lens", "max_length_q", "max_length_k", "seq_idx")
"""What tells a packed row's documents apart, and nothing else."""


class Document(NamedTuple):
    """Where a document lies in the rows of a batch."""

    row: int
    first: int
    end: int


def documents_apart(batch: Batch, *, causal: bool, masked: bool) -> Batch:
    """Return a batch with a row for each document, padded on the right; one without packed rows as it is.

    Args:
        batch: as a collator gives it.
        causal: whether the model predicts next tokens. A document of one token then has nothing to predict, and is
            left out; and positions that start anew mean documents, as the model itself takes them. To other models
            they may mean something else, so only what says plainly where documents begin counts.
        masked: whether the model can be told of padding by an ``attention_mask``.
    """
    if not batch.named:
        return batch
    inputs: Mapping[str, Any] = batch.inputs
    tokens = inputs.get("input_ids", inputs.get("inputs_embeds"))
    if not isinstance(tokens, Tensor) or tokens.ndim < 2:
        return batch
    shape = tokens.shape[:2]
    mask = inputs.get("attention_mask")
    real = torch.ones(shape, dtype=torch.bool)  # all tokens, but for padding
    if isinstance(mask, Tensor) and mask.shape == shape:
        real = mask.cpu() != 0
    starts = _stated_starts(inputs, shape)
    if starts is None:
        starts = _restarts(inputs.get("position_ids"), real) if causal else None
    if starts is None:
        return batch
    documents = []
    for row, (begins, counts) in enumerate(zip(starts, real, strict=True)):
        for first, end in itertools.pairwise([*begins.nonzero().flatten().tolist(), len(begins)]):
            places = counts[first:end].nonzero().flatten()
            if len(places):
                documents.append(Document(row, first + int(places[0]), first + int(places[-1]) + 1))
    long = [document for document in documents if document.end - document.first > 1]
    kept = (long or documents[:1]) if causal else documents
    return _laid_out(batch, shape, kept, causal=causal, masked=masked)


def _stated_starts(inputs: Mapping[str, Any], shape: torch.Size) -> Tensor | None:
    """Return where documents begin, if the batch says so itself."""
    ends = next((inputs[name] for name in BOUNDARIES if name.startswith("cu_") and inputs.get(name) is not None), None)
    number = inputs.get("seq_idx")
    starts = torch.zeros(shape, dtype=torch.bool)
    starts[:, 0] = True
    if isinstance(ends, Tensor) and shape[0] == 1 and ends.ndim == 1:
        starts[0, [int(end) for end in ends if int(end) < shape[1]]] = True
        return starts
    if isinstance(number, Tensor) and number.shape == shape:
        starts[:, 1:] = number[:, 1:].cpu() != number[:, :-1].cpu()
        return starts
    return None


def _restarts(positions: object, real: Tensor) -> Tensor | None:
    """Return where documents begin by their positions, or ``None`` if no row holds several.

    Positions go up by one, and at a document's start back to the first one there is. Whatever else they do, such as at
    padding that no mask tells of, has another meaning. A row's first document may begin later: the rest of one that was
    cut.
    """
    if not isinstance(positions, Tensor) or positions.shape != real.shape:
        return None
    starts = torch.zeros_like(real)
    several = False
    for row, (position, counts) in enumerate(zip(positions.cpu(), real, strict=True)):
        places = counts.nonzero().flatten()
        if not len(places):
            continue
        own = position[places]
        anew = own[1:] <= own[:-1]
        if bool(((own[1:] != own.min()) & anew).any()) or bool(((own[1:] != own[:-1] + 1) & ~anew).any()):
            return None
        starts[row, places[0]] = True
        starts[row, places[1:][anew]] = True
        several |= bool(anew.any())
    return starts if several else None


def _laid_out(batch: Batch, shape: torch.Size, documents: list[Document], *, causal: bool, masked: bool) -> Batch:
    """Return the documents as rows of a batch."""
    inputs = {name: value for name, value in batch.inputs.items() if name not in BOUNDARIES}
    labels = batch.targets
    if labels is None and causal and "input_ids" in inputs:
        labels = inputs["input_ids"]
    for name, given in (*inputs.items(), ("labels", labels)):
        if isinstance(given, Tensor) and given.ndim and given.shape[:2] != shape:
            raise BatchError(
                f"{name} of shape {tuple(given.shape)} beside rows of {tuple(shape)} tokens that hold several "
                f"documents each, {len(documents)} in all; expected one entry a token, since to which document it "
                "belongs cannot be told. Give batches of documents that are not packed."
            )
    if labels is None:
        raise BatchError(
            f"Rows that hold several documents each, {len(documents)} in all, without labels, so that padding between "
            "them could not be told. Give labels, with -100 where none counts, or batches that are not packed."
        )
    if masked:
        inputs.setdefault("attention_mask", torch.ones(shape, dtype=torch.long, device=labels.device))
    rows = {
        name: _cut(given, documents) if isinstance(given, Tensor) and given.ndim else given
        for name, given in inputs.items()
    }
    return read_batch({**rows, "labels": _cut(labels, documents, IGNORED)}, labels.device)


def _cut(rows: Tensor, documents: list[Document], padding: int = 0) -> Tensor:
    parts = [rows[row, first:end] for row, first, end in documents]
    return pad_sequence(parts, batch_first=True, padding_value=padding)


_MASK = "completion_mask"
_OF_THE_LOSS = ("ref_chosen_logps", "ref_rejected_logps", "ref_logps", "ref_KL_logps", "label")
"""What such a batch carries for the trainer's own loss, beside ``KL_…``: no model reads it."""


def only_wanted_completions(batch: Batch) -> Batch:
    """Return a batch in which only completions count that the model is to write; one without such a mask as it is."""
    inputs: Mapping[str, Any] = batch.inputs
    mask, tokens = inputs.get(_MASK), inputs.get("input_ids")
    if not isinstance(mask, Tensor) or not isinstance(tokens, Tensor) or mask.shape != tokens.shape:
        return batch
    rest = {name: given for name, given in inputs.items() if name not in (_MASK, *_OF_THE_LOSS)}
    rest = {name: given for name, given in rest.items() if not name.startswith("KL_")}
    if batch.targets is not None:  # they say themselves what counts
        return read_batch({**rest, "labels": batch.targets}, tokens.device)
    labels = tokens.masked_fill(mask == 0, IGNORED)
    whole = read_batch({**rest, "labels": labels}, tokens.device)
    wanted = inputs.get("label")
    if isinstance(wanted, Tensor) and wanted.shape == tokens.shape[:1]:
        places = wanted.nonzero().flatten()
        if len(places):
            return whole.rows(places)
        first = whole[:1]  # a batch has a sample at least: one that does not count, if need be
        return replace(first, targets=torch.full_like(labels[:1], IGNORED))
    pieces = _pieces(tokens, mask, inputs.get("attention_mask"))
    return whole[: whole.size // pieces]


def _pieces(tokens: Tensor, mask: Tensor, attention: object) -> int:
    """Return how many completions each prompt has, in as many pieces of the batch: 2 for DPO's, 3 for TPO's, or 1."""
    real = attention.cpu() != 0 if isinstance(attention, Tensor) else torch.ones_like(mask, dtype=torch.bool).cpu()
    rows = [(row[own].tolist(), int(own.sum())) for row, own in zip(tokens.cpu(), real, strict=True)]
    spans = [(mask_row.cpu()[own] != 0).nonzero().flatten() for mask_row, own in zip(mask, real, strict=True)]
    longest = max(length for _, length in rows)
    prompts = [
        (text[: int(span[0])] if len(span) else text, length == longest)
        for (text, length), span in zip(rows, spans, strict=True)
    ]
    for pieces in (2, 3):
        step, rest = divmod(len(prompts), pieces)
        found = [] if rest else [_alike(prompts[n], prompts[n % step]) for n in range(step, len(prompts))]
        if any(found) and False not in found:
            return pieces
    return 1


def _alike(one: tuple[list[int], bool], other: tuple[list[int], bool]) -> bool | None:
    """Return whether two rows have one prompt; ``None`` if one of them has lost all of it.

    A row that was cut to the full length may lack the prompt's beginning.
    """
    (short, is_full), (long, _) = sorted((one, other), key=lambda prompt: len(prompt[0]))
    if len(short) == len(long):
        return short == long if short else None
    if not is_full:
        return False
    return long[len(long) - len(short) :] == short if short else None
