"""Batches of prompts and completions, as TRL's trainers for preferences get them: what the model is to write counts.

``completion_mask`` says which tokens are a completion's. DPO's batches have the chosen completions first and then, of
the same prompts, the rejected ones; KTO's have a ``label`` for each, whether it is wanted. A data measure looks at what
the model has learned to write, so prompts do not count, and neither do completions that it was to unlearn.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from anchorhold.engine.batches import Batch, read_batch
from anchorhold.engine.scores import IGNORED

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
        # A batch has a sample at least: one that does not count, if need be.
        return whole.rows(places) if len(places) else _uncounted(whole)
    pieces = _pieces(tokens, mask, inputs.get("attention_mask"))
    return whole[: whole.size // pieces]


def _uncounted(batch: Batch) -> Batch:
    first = batch[:1]
    return first if first.targets is None else replace(first, targets=torch.full_like(first.targets, IGNORED))


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
    """Whether two rows have one prompt; ``None`` if one of them has lost all of it.

    A row that was cut to the full length may lack the prompt's beginning.
    """
    (short, is_full), (long, _) = sorted((one, other), key=lambda prompt: len(prompt[0]))
    if len(short) == len(long):
        return short == long if short else None
    if not is_full:
        return False
    return long[len(long) - len(short) :] == short if short else None
