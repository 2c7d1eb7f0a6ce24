"""Documents as tokens, and tokens as windows that a model can read at once.

A document s₁…s_n is read behind a start token s₀, as texts are in training. Its windows are the inputs
s_{kC}…s_{kC+C−1} for k = 0, 1, …, with C the context length, and each predicts the token after each of its inputs. So
every token is scored exactly once; the first ones of a later window are predicted from few tokens, by all models alike.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from anchorhold.errors import ConfigurationError, DataError
from anchorhold.evaluation.documents import Document


@dataclass(frozen=True)
class Encoded:
    """A document as a model reads it.

    Args:
        kind: of the document.
        place: where it comes from.
        tokens: all that is read, ``[T]``; the first one is never scored.
        first: the first token that is scored, at least 1.
        bytes: the length in UTF-8 of what is scored.
    """

    kind: str
    place: str
    tokens: Tensor
    first: int
    bytes: int

    @property
    def scored(self) -> int:
        """How many tokens are scored."""
        return len(self.tokens) - self.first


@dataclass(frozen=True)
class Window:
    """A part of a document that is read at once.

    Args:
        document: its place among the documents.
        inputs: tokens ``[t]``.
        targets: the tokens after each of them, ``[t]``.
        skipped: how many of the first targets are not scored.
    """

    document: int
    inputs: Tensor
    targets: Tensor
    skipped: int


def encode(documents: Sequence[Document], tokenizer: Any, start: int | None, vocabulary: int) -> list[Encoded]:
    """Return documents as tokens.

    A prompt and its completion are encoded together, and what is scored begins where the prompt's own tokens end; where
    the tokenizer joins the end of the one and the beginning of the other into one token, each is encoded by itself.

    Args:
        documents: the texts.
        tokenizer: Hugging Face's.
        start: the token in front of a text; ``None`` where none is known, which only chats can do without.
        vocabulary: how many tokens the model knows.

    Raise DataError for a document that has nothing to score or that the tokenizer cannot encode.
    """
    return [_encoded(document, tokenizer, start, vocabulary) for document in documents]


def _encoded(document: Document, tokenizer: Any, start: int | None, vocabulary: int) -> Encoded:
    prompt, text = (document.prompt, document.text) if document.messages is None else _by_template(document, tokenizer)
    tokens = _tokens(tokenizer, prompt + text)
    head = _tokens(tokenizer, prompt) if prompt else []
    if tokens[: len(head)] != head:
        tokens = head + _tokens(tokenizer, text)
    first = len(head)
    if document.messages is None or first == 0:
        if start is None:
            raise ConfigurationError(
                f"Neither the model nor its tokenizer names a token that texts begin or end with, so the first token "
                f"of {document.place} would be predicted from nothing. Give start=, --start in a shell: the number of "
                "a token, such as that of a new line."
            )
        # Some texts have it in them, as chats do that a template was applied to.
        if tokens[:1] != [start]:
            tokens, first = [start, *tokens], first + 1
    first = max(1, first)
    if len(tokens) <= first:
        raise DataError(
            f"{document.place}: the tokenizer makes {len(tokens) - first} tokens of what is to be scored, "
            f"{text[:40]!r}. Leave the document out, or give the model's own tokenizer."
        )
    if max(tokens) >= vocabulary:
        raise ConfigurationError(
            f"{document.place}: the tokenizer gives the token {max(tokens)}, and the model knows {vocabulary}. Give "
            "the model's own tokenizer, or resize its embedding to the tokenizer's length."
        )
    return Encoded(document.kind, document.place, torch.tensor(tokens), first, len(text.encode()))


def _tokens(tokenizer: Any, text: str) -> list[int]:
    # Not verbose, for it would warn of texts longer than the context, which are cut into windows.
    found: list[int] = list(tokenizer(text, add_special_tokens=False, verbose=False)["input_ids"])
    return found


def _by_template(document: Document, tokenizer: Any) -> tuple[str, str]:
    """Return a chat as the text up to its last answer, and that answer, without the marks that end it."""
    try:
        whole: str = tokenizer.apply_chat_template(list(document.messages or ()), tokenize=False)
    except Exception as error:  # a template is a program of its own, which may fail in any way
        raise ConfigurationError(
            f"{document.place} is a chat, and the tokenizer's chat template cannot be applied ({error}). Give a model "
            "whose tokenizer has a template, or rows with a prompt and a completion."
        ) from error
    for answer in (document.text, document.text.strip()):
        place = whole.rfind(answer)
        if answer and place >= 0:
            return whole[:place], answer
    raise DataError(
        f"{document.place}: the tokenizer's chat template changes the answer {document.text[:40]!r}, so it cannot be "
        "told which tokens to score. Give rows with a prompt and a completion."
    )


def same_tokens(one: Sequence[Encoded], other: Sequence[Encoded]) -> bool:
    """Return whether two tokenizers made the same tokens of all documents."""
    return all(
        a.first == b.first and torch.equal(a.tokens, b.tokens) for a, b in zip(one, other, strict=True)
    )  # fmt: skip


def windows_of(documents: Sequence[Encoded], context: int) -> list[Window]:
    """Return the windows of all documents, less those that score nothing."""
    found = []
    for number, document in enumerate(documents):
        last = len(document.tokens) - 1
        # A prompt that fills whole windows is not read where nothing of its window is scored.
        for begin in range((document.first - 1) // context * context, last, context):
            end = min(begin + context, last)
            inputs, targets = document.tokens[begin:end], document.tokens[begin + 1 : end + 1]
            found.append(Window(number, inputs, targets, max(0, document.first - 1 - begin)))
    return found


def batches_of(windows: Sequence[Window], positions: int) -> list[list[Window]]:
    """Return windows of similar length together, the longest first, at most so many positions with padding."""
    ordered = sorted(windows, key=lambda window: -len(window.inputs))
    found: list[list[Window]] = []
    for window in ordered:
        if found and (len(found[-1]) + 1) * len(found[-1][0].inputs) <= positions:
            found[-1].append(window)
        else:
            found.append([window])
    return found
