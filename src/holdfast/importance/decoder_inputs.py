"""What the decoder of an encoder-decoder model reads while it is measured: the labels, each one position later.

Hugging Face's models make it from the ``labels`` that they are called with. A measure wants logits and calls them
without, and then some of them let the decoder read the source text instead, without a word.
"""

import inspect
from collections.abc import Mapping
from typing import Any

from torch import Tensor, nn

from holdfast.errors import BatchError

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
