"""Text that a model writes itself, before it learns something new: what it can do, where the old data is gone."""

import contextlib
import os
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import nn

from anchorhold.engine.batches import Forward
from anchorhold.engine.isolation import to_eval_mode
from anchorhold.errors import ConfigurationError, warn
from anchorhold.own_text.beginnings import Beginnings, Ends, Prompt
from anchorhold.own_text.first_look import (
    context_of,
    refuse_beyond_context,
    refuse_looking_ahead,
    vocabulary_of,
    with_a_cache_that_works,
)
from anchorhold.own_text.model_reader import Writer, as_writer
from anchorhold.own_text.piece_batches import Choice, Manner, write_pieces
from anchorhold.own_text.text_folder import Kind, Piece, TextFolder, digest_of, weights_digest
from anchorhold.own_text.written_text import OwnText
from anchorhold.seeding import undisturbed
from anchorhold.settings import number, whole_number

PIECES = 512
MANY, SEVERAL = 0.1, 32
"""The part of all pieces that may be empty without a word, where they are so many that it means something."""


def write_text(
    model: nn.Module,
    pieces: int | None = None,
    length: int = 256,
    *,
    tokenizer: Any = None,
    prompts: Sequence[Prompt] | None = None,
    chat: bool = False,
    start: int | None = None,
    end: Ends = "auto",
    seed: int = 0,
    temperature: float = 1.0,
    top_k: int = 0,
    top_p: float = 1.0,
    keep_top: int = 0,
    batch_size: int = 32,
    cache: bool = True,
    forward: Forward | None = None,
    store: str | os.PathLike[str] | None = None,
    progress: Callable[[int, int], object] | None = None,
) -> OwnText:
    """Let a causal language model write text, as it is now, to be kept by what comes later.

    Call it before the model learns something new. The text stands in for the old data: for rehearsal, for
    distillation, or for the Fisher information, ``guard.consolidate(text.batches(8))``. The model is asked in eval mode
    and left as it was.

    Each piece depends on the seed and its own number alone, up to rounding: not on ``batch_size``, not on ``pieces``,
    not on where an interrupted call went on.

    Args:
        model: any of Hugging Face's models that generate and have no encoder, also with adapters, or any module that
            returns logits ``[N, T, V]`` for tokens ``[N, T]``.
        pieces: how many; by default 512, or one for each prompt.
        length: how many tokens are written for each at most, beside its beginning.
        tokenizer: Hugging Face's, for prompts that are text, for chats, and to read what was written.
        prompts: what to go on from, in turns: texts, tokens, or messages of a chat
            (``[{"role": "user", "content": "…"}]``), which go through the tokenizer's chat template. By default every
            piece begins with the model's token for a beginning, or with that of an end, which separated texts.
        chat: whether prompts that are texts are what a user says, and go through the chat template too.
        start: the token that pieces without a prompt begin with, where the model names none.
        end: the token or tokens that end a piece; by default those that the model and its tokenizer name. ``None`` for
            none: then every piece has ``length`` tokens.
        seed: of all that is drawn.
        temperature: logits are divided by it. The Fisher information wants 1, and so does a fair sample.
        top_k: draw from as many most probable tokens only; 0 for all.
        top_p: draw from the most probable tokens that have this probability together; 1 for all.
        keep_top: keep, in the place of each written token, as many most probable tokens with the model's
            log-probabilities, to distil from without the old model.
        batch_size: how many pieces are written side by side.
        cache: whether the model's cache of keys and values is used, if it has one.
        forward: ``forward(model, tokens)`` returns the logits of a model that is called in another way.
        store: a folder to write pieces to as they come. A second call goes on where one was stopped; a text of other
            weights or settings there is refused.
        progress: called with how many pieces there are and how many are wanted, after each batch.

    Returns:
        The pieces, as batches, texts and log-probabilities; ``print()`` tells how varied they are.
    """
    if isinstance(tokenizer, str) or (tokenizer is not None and not hasattr(tokenizer, "decode")):
        raise ConfigurationError(
            f"tokenizer={tokenizer!r}: expected a tokenizer of Hugging Face's, such as "
            "AutoTokenizer.from_pretrained(name), or None."
        )
    if chat and prompts is None:
        raise ConfigurationError("chat=True without prompts: expected what users say, prompts=['…', …].")
    size = whole_number("batch_size", batch_size, "a whole number of at least 1", least=1)
    wanted = None if pieces is None else whole_number("pieces", pieces, "a whole number of at least 1", least=1)
    writer = as_writer(model, forward, cache=cache)
    with _as_it_is(model):
        vocabulary = vocabulary_of(writer)
        found = Beginnings(writer, vocabulary, tokenizer)
        ends = found.ends(end)
        manner = _manner(seed, length, ends, temperature, top_k, top_p, keep_top, vocabulary)
        begun = [found.start(start)] if prompts is None else found.of_prompts(prompts, start, chat=chat)
        wanted = wanted or (PIECES if prompts is None else len(begun))
        kind = Kind(ends, found.padding(ends), writer.named)
        writer = _looked_at(writer, begun, manner.length, vocabulary)
        folder, there = None, {}
        if store is not None:
            folder = TextFolder(store, _asked(model, manner, begun), kind, wanted)
            there = folder.read()
        done = {place: there[place] for place in range(wanted) if place in there}
        for written in _batches(writer, manner, begun, [n for n in range(wanted) if n not in done], size):
            if folder is not None:
                folder.add(written)
            done |= {piece.number: piece for piece in written}
            if progress is not None:
                progress(len(done), wanted)
    text = OwnText([done[place] for place in range(wanted)], kind, tokenizer)
    if wanted >= SEVERAL and text.empty > MANY * wanted:
        warn(
            f"{text.empty} of {wanted} pieces are empty: the model ends them with their first token, as one does "
            "that was never shown a beginning of text, or has an end token that means something else to it. Say how "
            "its texts begin and end, with start= and end= (None for no end), or give prompts=."
        )
    return text


def _batches(
    writer: Writer, manner: Manner, begun: list[list[int]], numbers: list[int], size: int
) -> Iterator[list[Piece]]:
    """Write the pieces of these numbers, those with beginnings of similar length side by side."""
    order = sorted(numbers, key=lambda place: len(begun[place % len(begun)]))
    for first in range(0, len(order), size):
        chosen = order[first : first + size]
        yield write_pieces(writer, chosen, [begun[place % len(begun)] for place in chosen], manner)


def _manner(
    seed: int,
    length: int,
    ends: tuple[int, ...],
    temperature: float,
    top_k: int,
    top_p: float,
    keep_top: int,
    vocabulary: int,
) -> Manner:
    """Return how pieces are written, with every setting checked."""
    warm = number(
        "temperature", temperature, "a number above 0 (near 0, all pieces of a prompt are the same)", lambda t: t > 0
    )
    share = number("top_p", top_p, "a number above 0 and up to 1", lambda p: 0 < p <= 1)
    few = whole_number("top_k", top_k, "a whole number, 0 for all tokens", least=0)
    top = whole_number("keep_top", keep_top, "a whole number of most probable tokens, 0 for none", least=0)
    if top > vocabulary:
        raise ConfigurationError(f"keep_top={top}: expected at most {vocabulary}, the tokens that the model knows.")
    return Manner(
        whole_number("seed", seed, "a whole number"),
        whole_number("length", length, "a whole number of at least 1", least=1),
        ends,
        Choice(float(warm), few, float(share)),
        top,
    )


def _looked_at(writer: Writer, begun: list[list[int]], length: int, vocabulary: int) -> Writer:
    """Return how the model is asked after a first look at it, or say why it cannot write this."""
    most = max(range(len(begun)), key=lambda place: len(begun[place]))
    # The last token that is written is not read any more while writing, but it is by whoever uses the text.
    longest = len(begun[most]) + length
    context = context_of(writer)
    if context is not None and longest > context:
        which = (
            "a token to begin with" if len(begun[most]) == 1 else f"prompt {most} with its {len(begun[most])} tokens"
        )
        raise ConfigurationError(
            f"length={length} after {which} makes {longest} tokens, and {type(writer.model).__name__} reads at most "
            f"{context}. Write at most length={max(0, context - len(begun[most]))}, or give shorter prompts."
        )
    if not writer.named or context is None:
        refuse_beyond_context(writer, begun[most], longest)
    refuse_looking_ahead(writer, begun[most], vocabulary, longest)
    return with_a_cache_that_works(writer, begun[most], vocabulary, longest)


def _asked(model: nn.Module, manner: Manner, begun: list[list[int]]) -> dict[str, Any]:
    """Return all that a piece of a given number depends on."""
    choice = manner.choice
    return {
        "weights": weights_digest(model),
        "beginnings": digest_of(begun),
        "seed": manner.seed,
        "length": manner.length,
        "ends": list(manner.ends),
        "temperature": choice.temperature,
        "top_k": choice.top_k,
        "top_p": choice.top_p,
        "keep_top": manner.top,
    }


@contextlib.contextmanager
def _as_it_is(model: nn.Module) -> Iterator[None]:
    """Ask a model in eval mode and without gradients, and leave it and everyone's random numbers as they were."""
    modes = [(module, module.training) for module in model.modules()]
    # Every length would be compiled anew. Inference mode would leave tensors in a model's own caches that training
    # cannot use.
    with torch.no_grad(), undisturbed(), torch.compiler.set_stance("force_eager"):
        try:
            to_eval_mode(model)
            yield
        finally:
            for module, training in modes:
                module.training = training
