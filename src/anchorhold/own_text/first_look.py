"""A look at a model before it writes, so that what is wrong shows before hours of writing and not after.

How many tokens it knows, whether it writes from left to right, whether its cache and its context do what they are for.
"""

import torch
from torch import Tensor

from anchorhold.errors import AnchorholdError, ModelError, warn
from anchorhold.own_text.model_reader import Writer

_LOOKED_AT = 12
"""Tokens that are read to tell whether a model looks ahead."""


def vocabulary_of(writer: Writer) -> int:
    """Return how many tokens a model's logits are over; token 0 is one that every model can read."""
    try:
        logits = writer.logits(torch.zeros(1, 1, dtype=torch.long, device=writer.device))
    except torch.OutOfMemoryError:
        raise
    except (RuntimeError, TypeError, IndexError) as error:
        raise ModelError(
            f"{type(writer.model).__name__} cannot read a token ({type(error).__name__}: {error}); expected a causal "
            "language model, which takes whole numbers [N, T] and returns logits [N, T, V] of the tokens that come "
            "next. forward= says how one is called that takes more."
        ) from error
    return logits.shape[-1]


def context_of(writer: Writer) -> int | None:
    """Return the longest text that a model says it can read, if it says so."""
    config = getattr(writer.model, "config", None)
    text = getattr(config, "get_text_config", None)
    longest = getattr(text() if callable(text) else config, "max_position_embeddings", None)
    return longest if isinstance(longest, int) and longest > 0 else None


def refuse_looking_ahead(writer: Writer, beginning: list[int], vocabulary: int, longest: int) -> None:
    """Refuse a model whose logits depend on what comes later, as those of a masked language model do."""
    length = min(_LOOKED_AT, longest)
    half = length // 2
    if half < 1 or vocabulary < 2:
        return
    first = beginning[0]
    tokens = torch.full((2, length), first, device=writer.device)
    tokens[1, half:] = (first + 1) % vocabulary
    same, other = writer.logits(tokens)[:, :half].double().cpu()
    if _differ(same, other, writer):
        raise ModelError(
            f"{type(writer.model).__name__} looks ahead: its logits at a token change with the tokens after it, so "
            "they are no probabilities of the next one, and it cannot write. Give a causal language model."
        )


def with_a_cache_that_works(writer: Writer, beginning: list[int], vocabulary: int, longest: int) -> Writer:
    """Return the writer, without its cache if reading with it gives something else, which is told."""
    length = min(3, longest)
    if not writer.cached or length < 2:
        return writer
    tokens = torch.tensor([[beginning[0], *range(length - 1)]], device=writer.device) % vocabulary
    reader = writer.reader()
    try:
        reader(tokens[:, :1])
        stepwise = reader(tokens)
    except (AttributeError, TypeError, ValueError, RuntimeError, AnchorholdError) as error:
        wrong = f"calling it with past_key_values failed ({error})"
    else:
        at_once = writer.without_cache().reader()(tokens)
        if not _differ(stepwise.double().cpu(), at_once.double().cpu(), writer):
            return writer
        wrong = "reading with past_key_values gives other logits than reading the text at once"
    warn(
        f"{type(writer.model).__name__} writes without a cache: {wrong}. The text is right, but every token takes a "
        "pass over all before it. cache=False says the same without this warning."
    )
    return writer.without_cache()


def refuse_beyond_context(writer: Writer, beginning: list[int], longest: int) -> None:
    """Refuse texts that a model cannot read, which one that says nothing of its context shows by failing.

    Args:
        writer: the model.
        beginning: of a text.
        longest: tokens of the longest text that is to be written.
    """
    tokens = torch.tensor([(beginning * longest)[:longest]], device=writer.device)
    try:
        writer.logits(tokens)
    except (IndexError, RuntimeError, ValueError, AssertionError) as error:
        raise ModelError(
            f"{type(writer.model).__name__} failed to read {longest} tokens ({type(error).__name__}: {error}). If that "
            "is more than it was made for, write shorter pieces, length=, or give shorter prompts."
        ) from error


def _differ(one: Tensor, other: Tensor, writer: Writer) -> bool:
    """Whether logits differ by more than rounding; of NaN, which is found later, nothing can be said."""
    rough = any(p.dtype in (torch.float16, torch.bfloat16) for p in writer.model.parameters())
    allowed = (0.1 if rough else 1e-3) * float(one.std(correction=0).clamp(min=1e-30)) + 1e-12
    return float((one - other).abs().max()) > allowed
