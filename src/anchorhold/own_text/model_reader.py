"""How a model is asked for the logits of the next token.

With the cache of keys and values that Hugging Face's models fill (``past_key_values``), each token is read once; any
other model reads the whole text so far again for every token.
"""

import inspect
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from anchorhold.engine.batches import Forward, call_model
from anchorhold.engine.conventions.huggingface import accepts_argument, has_encoder, text_writer
from anchorhold.errors import ModelError

Reader = Callable[[Tensor], Tensor]
"""Takes all tokens ``[N, T]`` so far, more at each call, and returns the logits ``[N, V]`` of the next ones."""


@dataclass(frozen=True)
class Writer:
    """A model as it is asked.

    Args:
        model: what is called.
        named: whether it is one of Hugging Face's, whose batches have names.
        cached: whether it is asked with its cache.
        forward: how it is called, if not in the usual way.
    """

    model: nn.Module
    named: bool
    cached: bool
    forward: Forward | None = None

    @property
    def device(self) -> torch.device:
        """Where it reads."""
        return next((parameter.device for parameter in self.model.parameters()), torch.device("cpu"))

    def without_cache(self) -> "Writer":
        """Return the same model, asked with the whole text each time."""
        return replace(self, cached=False)

    def logits(self, tokens: Tensor) -> Tensor:
        """Return the logits ``[N, T, V]`` at every token of ``[N, T]``."""
        return self._checked(self._call(tokens), tokens)

    def reader(self) -> Reader:
        """Return a function that reads one batch of texts as they become longer."""
        return _CachedReader(self.model) if self.cached else self._last

    def _last(self, tokens: Tensor) -> Tensor:
        more = {"logits_to_keep": 1} if self.named and self.forward is None and _keeps_logits(self.model) else {}
        outputs = self._call(tokens, **more)
        return outputs[:, -1] if more else self._checked(outputs, tokens)[:, -1]

    def _call(self, tokens: Tensor, **more: Any) -> Tensor:
        if self.forward is not None:
            return self.forward(self.model, tokens)
        if self.named:
            inputs = {"input_ids": tokens, **_all_read(self.model, tokens), "use_cache": False, "return_dict": True}
            return call_model(self.model, {**inputs, **more})
        return call_model(self.model, tokens)

    def _checked(self, outputs: Tensor, tokens: Tensor) -> Tensor:
        shape = tuple(tokens.shape)
        # PEFT's prompt tuning puts learned places before the tokens, so outputs may be of more places than were given.
        if not isinstance(outputs, Tensor) or outputs.ndim != 3 or outputs.shape[1] < shape[1]:
            given = tuple(outputs.shape) if isinstance(outputs, Tensor) else type(outputs).__name__
            raise ModelError(
                f"{type(self.model).__name__} returned {given} for tokens of shape {shape}; a model that writes "
                "returns logits for the next token at each of them, [N, T, V]. If it has them elsewhere, give "
                "forward=lambda model, tokens: ... that returns them."
            )
        return outputs[:, outputs.shape[1] - shape[1] :]


class _CachedReader:
    """Reads only what it has not read yet, and leaves the rest to the model's cache."""

    def __init__(self, model: nn.Module) -> None:
        self._model = model
        self._more = {"logits_to_keep": 1} if _keeps_logits(model) else {}
        self._cache: Any = None
        self._read = 0

    def __call__(self, tokens: Tensor) -> Tensor:
        outputs = self._model(
            input_ids=tokens[:, self._read :],
            **_all_read(self._model, tokens),
            past_key_values=self._cache,
            use_cache=True,
            return_dict=True,
            **self._more,
        )
        self._cache, self._read = outputs.past_key_values, tokens.shape[1]
        if self._cache is None:
            raise ModelError(f"{type(self._model).__name__} returned no past_key_values.")
        logits: Tensor = outputs.logits[:, -1]
        return logits


def as_writer(model: nn.Module, forward: Forward | None, *, cache: bool) -> Writer:
    """Return how a model is asked, or say that it is none that writes."""
    if not isinstance(model, nn.Module):
        raise ModelError(f"A model of type {type(model).__name__}; expected a torch.nn.Module that returns logits.")
    if any(parameter.is_meta for parameter in model.parameters()):
        raise ModelError(f"{type(model).__name__} has parameters without values (on the meta device). Load them first.")
    generating = text_writer(model)
    if generating is None:
        if callable(getattr(model, "can_generate", None)):
            raise ModelError(
                f"{type(model).__name__} cannot generate: it says so itself, can_generate() is false. Give the model "
                "with its language-modelling head, such as one of AutoModelForCausalLM."
            )
        return Writer(model, named=False, cached=False, forward=forward)
    if has_encoder(generating):
        raise ModelError(
            f"{type(generating).__name__} has an encoder and a decoder: what it writes depends on a text that the "
            "encoder reads. Own text is written by models that have a decoder alone."
        )
    cached = cache and forward is None and accepts_argument(generating, "past_key_values")
    return Writer(generating, named=True, cached=cached, forward=forward)


def _all_read(model: nn.Module, tokens: Tensor) -> dict[str, Tensor]:
    """Return a mask that says that no token is padding, where a model would wonder about those that look like it."""
    return {"attention_mask": torch.ones_like(tokens)} if accepts_argument(model, "attention_mask") else {}


def _keeps_logits(model: nn.Module) -> bool:
    """Whether a model can be asked for the last token's logits alone, which saves memory where the vocabulary is large.

    PEFT's models hand on whatever they are called with, so it is the one within them that says so.
    """
    base = getattr(model, "get_base_model", None)
    inner = base() if callable(base) else model
    try:
        return "logits_to_keep" in inspect.signature(inner.forward).parameters
    except (TypeError, ValueError):
        return False
