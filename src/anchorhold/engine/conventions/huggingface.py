"""What Hugging Face's models do with batches and labels.

Language models take ``labels`` that lie where the tokens lie, and shift them inside their loss: the logits at position
t are scored with the label at t + 1. The decoder of an encoder-decoder model reads the labels, each one position later,
which the model makes from them. A measure wants logits and calls models without labels, so it has to do the same.

A module may hold a language model and give something else, such as a tag for every token: then its labels are its own,
and only its outputs tell.

Classifiers of whole samples choose their loss by ``config.problem_type``. Where that is not set, they set it when they
first see labels, by a rule of their own: so it is read when importance is measured, and not before. Other models have
the same field in their configs and never look at it.
"""

import inspect
import sys
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from anchorhold.engine.batches import Batch
from anchorhold.engine.conventions.base import Completion, register_convention
from anchorhold.engine.conventions.rows import documents_apart, only_wanted_completions
from anchorhold.engine.scores.output_reading import LIKELIHOOD_OF
from anchorhold.engine.scores.outputs import IGNORED
from anchorhold.errors import BatchError


@register_convention
def read_as_language_model(model: nn.Module) -> Completion | None:
    """Return how batches are completed: documents apart, labels as the outputs lie, the decoder given what it reads."""
    writer = text_writer(model)
    if writer is None:
        return partial(documents_apart, causal=False, masked=accepts_argument(model, "attention_mask"))
    if has_encoder(writer):
        return partial(_with_decoder_inputs, model, writer)
    return partial(_with_next_tokens, model, writer)


def _with_next_tokens(model: nn.Module, writer: nn.Module, batch: Batch) -> Batch:
    if not batch.named:
        return batch
    itself = writer is model
    if itself:
        refuse_single_texts(batch.inputs, batch.targets)
    given = batch.targets is not None
    batch = only_wanted_completions(
        documents_apart(batch, causal=True, masked=accepts_argument(model, "attention_mask"))
    )
    labelling = partial(_labels_of_text, tokens_of(writer), itself=itself, given=given)
    return replace(batch, labelling=labelling)


def _labels_of_text(
    tokens: frozenset[int], batch: Batch, outputs: Tensor, *, itself: bool, given: bool
) -> Tensor | None:
    """Return the next tokens as labels where the outputs are a language model's, and otherwise those that were given.

    Args:
        tokens: how many the writer knows, by all that say so.
        batch: the samples.
        outputs: of the model.
        itself: whether the model is the writer, whose outputs may be of more tokens than its config says, but not of
            fewer; of a part of a module they are if they are over its tokens.
        given: whether the batch had labels of its own.
    """
    last = outputs.shape[-1]
    is_text = not tokens or last >= min(tokens) if itself else outputs.ndim == 3 and last in tokens
    if is_text:
        return next_token_labels(batch.inputs, batch.targets)
    return batch.targets if given else None


_GIVEN = ("decoder_input_ids", "decoder_inputs_embeds")


def _with_decoder_inputs(model: nn.Module, writer: nn.Module, batch: Batch) -> Batch:
    """Return a batch with what the decoder reads, made from the labels as the model does where it is missing.

    Args:
        model: what is called with the inputs.
        writer: the encoder-decoder model that generates: the same, or a part of it.
        batch: the samples, whose labels are what the decoder is to write.
    """
    inputs, labels = batch.inputs, batch.targets
    if not isinstance(inputs, Mapping) or labels is None:
        return batch
    if writer is not model and labels.ndim != 2:
        return batch  # a class for each text: no text to be written
    if any(inputs.get(name) is not None for name in _GIVEN) or not accepts_argument(model, _GIVEN[0]):
        return batch
    refuse_single_texts(inputs, labels)
    prepare = getattr(writer, "prepare_decoder_input_ids_from_labels", None)
    made = _one_position_later(writer, labels) if prepare is None else prepare(labels=labels)
    completed = replace(batch, inputs={**inputs, _GIVEN[0]: made})
    if writer is model:
        return completed
    return replace(completed, labelling=partial(_labels_of_decoder, type(model).__name__, tokens_of(writer)))


def _labels_of_decoder(name: str, tokens: frozenset[int], batch: Batch, outputs: Tensor) -> Tensor | None:
    """Return the labels as they are, unless the decoder has read labels that are none of its own."""
    if outputs.ndim != 3 or outputs.shape[-1] not in tokens:
        raise BatchError(
            f"{name} returned outputs of shape {tuple(outputs.shape)}, which are not over the tokens of the "
            "encoder-decoder model in it, so the labels are no text for its decoder to read. Give the batch the "
            "decoder_input_ids that the decoder is to read, or let the module's forward() not take any."
        )
    return batch.targets


def text_writer(model: nn.Module) -> nn.Module | None:
    """Return the model that generates, after Hugging Face's conventions: this one, or one in it.

    A LightningModule may hold one. Of several that lie within each other, the outermost counts; wrappers that hand on
    what they are asked, as PEFT's and compiled models do, are the model itself.
    """
    for module in model.modules():
        can_generate = getattr(module, "can_generate", None)
        if callable(can_generate) and can_generate():
            return module
    return None


def has_encoder(writer: nn.Module) -> bool:
    """Return whether a model that generates has an encoder of its own: labels and logits then lie side by side."""
    return bool(getattr(getattr(writer, "config", None), "is_encoder_decoder", False))


def tokens_of(writer: nn.Module) -> frozenset[int]:
    """Return how many tokens a language model's outputs are over: by its last layer, and by its config."""
    embeddings = getattr(writer, "get_output_embeddings", None)
    weight = getattr(embeddings() if callable(embeddings) else None, "weight", None)
    config = getattr(writer, "config", None)
    text = getattr(config, "get_text_config", None)
    known: list[Any] = [len(weight)] if isinstance(weight, Tensor) and weight.ndim == 2 else []
    known += [getattr(own, "vocab_size", None) for own in (config, text() if callable(text) else None)]
    return frozenset(number for number in known if isinstance(number, int))


def refuse_single_texts(inputs: Mapping[str, Any], labels: Tensor | None) -> None:
    """Refuse the rows of a data set, which look like a batch of tokens."""
    for name, given in (("input_ids", inputs.get("input_ids")), ("labels", labels)):
        if isinstance(given, Tensor) and given.ndim == 1:
            raise BatchError(
                f"{name} of shape {tuple(given.shape)}: a single text, such as a row of a data set; expected batches "
                "of them, [N, T]. Give DataLoader(dataset, batch_size=8), with the collator that pads if the texts "
                "differ in length."
            )


def next_token_labels(inputs: Mapping[str, Any], labels: Tensor | None) -> Tensor | None:
    """Return the label of every position's logits, as ``[N, T]``, with −100 where none counts.

    The last position has no next token. Padding has no part in it either: neither a padded token as a label, nor the
    logits that were computed at one, which matters for the first token after padding on the left. Without labels, the
    tokens themselves are the labels.
    """
    refuse_single_texts(inputs, labels)
    tokens = inputs.get("input_ids")
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


def _one_position_later(writer: nn.Module, labels: Tensor) -> Tensor:
    """Return labels as the decoder of a model reads them that makes them inside its loss alone, as Whisper does."""
    config = getattr(writer, "config", None)
    start, padding = (getattr(config, f"{name}_token_id", None) for name in ("decoder_start", "pad"))
    # A family of models may begin with something else than a start token, by its own function for it.
    shift = getattr(sys.modules.get(type(writer).__module__), "shift_tokens_right", None)
    starts_otherwise = shift is not None and "decoder_start_token_id" not in inspect.signature(shift).parameters
    if start is None or padding is None or starts_otherwise:
        raise BatchError(
            f"A batch with labels and without decoder_input_ids, which cannot be made from them: they are the labels "
            f"one position later, and {type(writer).__name__} does not say what comes first and what stands for -100 "
            f"(its config has decoder_start_token_id={start} and pad_token_id={padding}). Set these, or give both "
            "labels and decoder_input_ids."
        )
    later = torch.full_like(labels, start)
    later[:, 1:] = labels[:, :-1]
    return later.masked_fill_(later == IGNORED, padding)


def accepts_argument(model: nn.Module, name: str) -> bool:
    """Return whether a model can be called with an argument of this name: a module around a language model may not."""
    try:
        arguments = inspect.signature(model.forward).parameters
    except (TypeError, ValueError):  # a traced model does not say
        return False
    return name in arguments or any(argument.kind is argument.VAR_KEYWORD for argument in arguments.values())


_CLASSIFIERS = tuple(f"For{kind}Classification" for kind in ("Sequence", "Image", "Video", "Audio"))
"""How the names of those models end whose loss is chosen by it."""


def problem_type(model: nn.Module, labels: Tensor | None) -> str | None:
    """Return the problem type of a model that has one: the one that is set, or that it would set by these labels.

    Args:
        model: what is called.
        labels: those that travel with the inputs, as the model's own loss takes them; others may be another loss's.
    """
    # Out of torch.compile's and PEFT's wrappers, which call the model itself and give its outputs back.
    called: Any = getattr(model, "_orig_mod", model)
    base = getattr(called, "get_base_model", None)
    found = base() if callable(base) else called
    called = found if isinstance(found, nn.Module) else model
    if not any(kind.__name__.endswith(_CLASSIFIERS) for kind in type(called).__mro__):
        return None
    config = getattr(called, "config", None)
    named = getattr(config, "problem_type", None)
    if isinstance(named, str) and named in LIKELIHOOD_OF:
        return named
    if labels is None or not isinstance(getattr(config, "num_labels", None), int):
        return None
    if getattr(config, "num_labels", None) == 1:
        return "regression"
    return "multi_label_classification" if labels.is_floating_point() else "single_label_classification"
