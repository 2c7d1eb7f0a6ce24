"""Which label each position of a causal language model's output has: that of the token after it.

Hugging Face's models take ``labels`` that lie where the tokens lie, and shift them inside their loss: the logits at
position t are scored with the label at t + 1. A measure that looks at the logits has to do the same.
"""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from holdfast.errors import BatchError
from holdfast.importance.scores import IGNORED


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
