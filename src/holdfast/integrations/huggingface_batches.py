"""Batches as Hugging Face's language models read them.

Its models take ``labels`` that lie where the tokens lie, and shift them inside their loss: the logits at position t are
scored with the label at t + 1. The decoder of an encoder-decoder model reads the labels, each one position later, which
the model makes from them. A measure wants logits and calls models without labels, so it has to do the same.
"""

import inspect
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from holdfast.errors import BatchError
from holdfast.persample.batches import Batch, Completion, register_convention
from holdfast.persample.scores import IGNORED


@register_convention
def read_as_language_model(model: nn.Module) -> Completion | None:
    """Return how the batches of a language model are completed: labels shifted, or the decoder given what it reads."""
    writer = text_writer(model)
    if writer is None:
        return None
    return partial(_with_decoder_inputs, model, writer) if has_encoder(writer) else _with_next_tokens


def _with_next_tokens(batch: Batch) -> Batch:
    return replace(batch, targets=next_token_labels(batch.inputs, batch.targets)) if batch.named else batch


def _with_decoder_inputs(model: nn.Module, writer: nn.Module, batch: Batch) -> Batch:
    if not isinstance(batch.inputs, Mapping) or batch.targets is None:
        return batch
    return replace(batch, inputs=with_decoder_inputs(model, writer, batch.inputs, batch.targets))


def text_writer(model: nn.Module) -> nn.Module | None:
    """Return the model that generates, after Hugging Face's conventions: this one, or one in it.

    A LightningModule may hold one. Of several that lie within each other, the outermost counts.
    """
    for module in model.modules():
        can_generate = getattr(module, "can_generate", None)
        if callable(can_generate) and can_generate():
            return module
    return None


def has_encoder(writer: nn.Module) -> bool:
    """Whether a model that generates has an encoder of its own: labels and logits then lie side by side."""
    return bool(getattr(getattr(writer, "config", None), "is_encoder_decoder", False))


def next_token_labels(inputs: Mapping[str, Any], labels: Tensor | None) -> Tensor | None:
    """Return the label of every position's logits, as ``[N, T]``, with −100 where none counts.

    The last position has no next token. Padding has no part in it either: neither a padded token as a label, nor the
    logits that were computed at one, which matters for the first token after padding on the left. Without labels, the
    tokens themselves are the labels.
    """
    tokens = inputs.get("input_ids")
    for name, given in (("input_ids", tokens), ("labels", labels)):
        if isinstance(given, Tensor) and given.ndim == 1:
            raise BatchError(
                f"{name} of shape {tuple(given.shape)}: a single text, such as a row of a data set; expected batches "
                "of them, [N, T]. Give DataLoader(dataset, batch_size=8), with the collator that pads if the texts "
                "differ in length."
            )
    if labels is None:
        labels = tokens if isinstance(tokens, Tensor) and tokens.ndim == 2 else None
    elif isinstance(tokens, Tensor) and labels.shape != tokens.shape:
        raise BatchError(
            f"labels of shape {tuple(labels.shape)} for input_ids of shape {tuple(tokens.shape)}; a causal language "
            "model wants one label a token, unshifted, with -100 where none counts."
        )
    if labels is None:
        return None
    shifted = torch.full_like(labels, IGNORED)
    shifted[:, :-1] = labels[:, 1:]
    mask = inputs.get("attention_mask")
    if isinstance(mask, Tensor) and mask.shape == labels.shape:
        real = mask.to(labels.device) != 0
        shifted[:, :-1].masked_fill_(~(real[:, 1:] & real[:, :-1]), IGNORED)
    return shifted


_GIVEN = ("decoder_input_ids", "decoder_inputs_embeds")


def with_decoder_inputs(
    model: nn.Module, writer: nn.Module, inputs: Mapping[str, Any], labels: Tensor
) -> Mapping[str, Any]:
    """Return inputs that have what the decoder reads, made from the labels by the model itself where it is missing.

    Args:
        model: what is called with the inputs.
        writer: the encoder-decoder model that generates: the same, or a part of it.
        inputs: a batch without its labels.
        labels: what the decoder is to write.
    """
    if any(inputs.get(name) is not None for name in _GIVEN) or not _takes(model, _GIVEN[0]):
        return inputs
    prepare = getattr(writer, "prepare_decoder_input_ids_from_labels", None)
    if prepare is None:
        raise BatchError(
            f"A batch with labels and without decoder_input_ids, which {type(writer).__name__} cannot make from them; "
            "expected both. DataCollatorForSeq2Seq(tokenizer, model) adds them for models that can. For this one they "
            "are the labels one position later: first config.decoder_start_token_id, and config.pad_token_id for -100."
        )
    return {**inputs, _GIVEN[0]: prepare(labels=labels)}


def _takes(model: nn.Module, name: str) -> bool:
    """Whether a model can be called with an argument of this name: a module around a language model may not."""
    arguments = inspect.signature(model.forward).parameters
    return name in arguments or any(argument.kind is argument.VAR_KEYWORD for argument in arguments.values())
