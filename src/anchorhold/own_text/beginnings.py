"""What pieces begin with, and what ends them: by what the model and its tokenizer say, or as given."""

from collections.abc import Mapping, Sequence
from numbers import Integral
from typing import Any, Literal

from torch import Tensor

from anchorhold.errors import ConfigurationError, warn
from anchorhold.own_text.model_reader import Writer

Prompt = str | Sequence[int] | Tensor | Sequence[Mapping[str, Any]]
"""A text, tokens, or the messages of a chat."""

Ends = int | list[int] | tuple[int, ...] | None | Literal["auto"]


class Beginnings:
    """Finds what pieces begin with and end with.

    Args:
        writer: the model.
        vocabulary: how many tokens it knows.
        tokenizer: of its texts, or ``None``.
    """

    def __init__(self, writer: Writer, vocabulary: int, tokenizer: Any) -> None:
        self._writer = writer
        self._vocabulary = vocabulary
        self._tokenizer = tokenizer

    def ends(self, given: Ends) -> tuple[int, ...]:
        """Return the tokens that end a piece; where a model should have one and has none, this is told."""
        if given is None:
            return ()
        if given != "auto":
            wanted = list(given) if isinstance(given, list | tuple) else [given]
            return tuple(sorted({self._token(token, "end") for token in wanted}))
        found = self._special("eos")
        ends = tuple(sorted(token for token in found if token < self._vocabulary))
        if not ends and (self._tokenizer is not None or self._writer.named):
            beyond = f" (there is {min(found)}, but the model knows only {self._vocabulary} tokens)" if found else ""
            warn(
                f"Neither the model nor a tokenizer names an end token{beyond}, so every piece has its full length, "
                "also where the text was over before. Give end=, the number of a token, or end=None if there is none."
            )
        return ends

    def start(self, given: int | None) -> list[int]:
        """Return the token that pieces without a prompt begin with."""
        if given is not None:
            return [self._token(given, "start")]
        # Texts were separated by the end token in training where there is no token of their beginning, as for GPT-2.
        for name in ("bos", "eos"):
            found = [token for token in self._special(name) if token < self._vocabulary]
            if found:
                return found[:1]
        raise ConfigurationError(
            f"Nothing says how a text of {type(self._writer.model).__name__} begins: no token of beginning or end is "
            "known. Give start=, the number of a token, such as that of a new line, or prompts= to go on from."
        )

    def padding(self, ends: Sequence[int]) -> int:
        """Return the token that is put where a piece of a batch is over."""
        found = [token for token in self._special("pad") if token < self._vocabulary]
        return next(iter([*found, *ends, 0]))

    def of_prompts(self, prompts: Sequence[Prompt], start: int | None, *, chat: bool) -> list[list[int]]:
        """Return the tokens of each prompt, or say what is wrong with one."""
        if isinstance(prompts, str | Mapping) or not isinstance(prompts, Sequence | Tensor):
            raise ConfigurationError(
                f"prompts of type {type(prompts).__name__}; expected a list of texts, tokens, or messages of a chat."
            )
        if not len(prompts):
            raise ConfigurationError("prompts=[]: expected at least one. Leave prompts out to begin with nothing.")
        return [self._prompt(number, prompt, start, chat=chat) for number, prompt in enumerate(prompts)]

    def _prompt(self, number: int, prompt: Prompt, start: int | None, *, chat: bool) -> list[int]:
        what = f"Prompt {number}"
        if isinstance(prompt, Sequence) and len(prompt) and isinstance(prompt[0], Mapping):  # messages of a chat
            tokens = self._by_template(what, prompt)
        elif isinstance(prompt, str):
            tokens = (
                self._by_template(what, [{"role": "user", "content": prompt}]) if chat else self._text(what, prompt)
            )
        elif chat:
            raise ConfigurationError(
                f"{what} is of type {type(prompt).__name__}, with chat=True; expected a text, or a list of messages "
                'such as {"role": "user", "content": "…"}.'
            )
        else:
            given: Any = prompt.tolist() if isinstance(prompt, Tensor) else prompt
            if not isinstance(given, Sequence):
                raise ConfigurationError(f"{what} is of type {type(prompt).__name__}; expected a text, or its tokens.")
            tokens = list(given)
        tokens = [self._token(token, f"{what}: token") for token in tokens]
        return tokens or self.start(start)

    def _text(self, what: str, prompt: str) -> list[int]:
        tokenizer = self._with_tokenizer(what)
        tokens = list(tokenizer.encode(prompt))
        end = getattr(tokenizer, "eos_token_id", None)
        # A tokenizer that ends every text would have the model begin another one.
        if tokens and tokens[-1] == end and list(tokenizer.encode(prompt, add_special_tokens=False))[-1:] != [end]:
            tokens.pop()
        return tokens

    def _by_template(self, what: str, messages: Any) -> list[int]:
        tokenizer = self._with_tokenizer(what)
        try:
            made = tokenizer.apply_chat_template(messages, add_generation_prompt=True, tokenize=True, return_dict=True)
        except Exception as error:  # a template is a program of its own, which may fail in any way
            raise ConfigurationError(
                f"{what} cannot be put into the chat template of {type(tokenizer).__name__} ({error}). Give a "
                "tokenizer that has one, messages as it wants them, or chat=False and the prompt as a text."
            ) from error
        tokens: list[int] = list(made["input_ids"])
        return tokens

    def _with_tokenizer(self, what: str) -> Any:
        if self._tokenizer is None:
            raise ConfigurationError(
                f"{what} is a text, and there is no tokenizer. Give tokenizer=, or prompts as tokens."
            )
        return self._tokenizer

    def _token(self, given: object, what: str) -> int:
        if isinstance(given, bool) or not isinstance(given, Integral) or not 0 <= int(given) < self._vocabulary:
            of_tokenizer = (
                "" if self._tokenizer is None else " A tokenizer may know more tokens than the model: resize it."
            )
            raise ConfigurationError(
                f"{what} {given!r}: expected the number of a token, from 0 to {self._vocabulary - 1}.{of_tokenizer}"
            )
        return int(given)

    def _special(self, name: str) -> list[int]:
        """Return the tokens of a kind that the model and its tokenizer name."""
        model = self._writer.model
        config = getattr(model, "config", None)
        text = getattr(config, "get_text_config", None)
        key = f"{name}_token_id"
        sources = [getattr(model, "generation_config", None), config, text() if callable(text) else None]
        configured = next((own for own in (getattr(source, key, None) for source in sources) if own is not None), None)
        found: list[int] = []
        for own in (configured, getattr(self._tokenizer, key, None)):
            several = own if isinstance(own, list | tuple) else [own]
            # Some name −1, which means none.
            found += [int(token) for token in several if isinstance(token, Integral) and int(token) >= 0]
        return list(dict.fromkeys(found))
