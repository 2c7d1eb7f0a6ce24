"""The settings of :func:`anchorhold.protect`: one schema, which the callback has too."""

import dataclasses
import inspect
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from anchorhold.engine.batches import Forward
from anchorhold.errors import ConfigurationError
from anchorhold.forms import Form
from anchorhold.forms import form as form_by_name
from anchorhold.guard.arguments.selection import Protect
from anchorhold.own_text import OwnText, write_text
from anchorhold.settings import checked_share, number, whole_number

TOKENS = 2**17
LENGTH = 256
MEASURED = 256
SHARE = 1 / 8
_NOT_OF_WRITING = {"model", "pieces", "length", "tokenizer", "forward", "store", "progress"}
"""Arguments of write_text() that protect() gives itself."""
Progress = bool | Callable[[str, int, int], object]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Protection:
    """What :func:`anchorhold.protect` does, and with how much of everything.

    Args:
        tokens: how many tokens a language model writes itself, in pieces of ``length``.
        length: tokens of a piece, of own text and of text files; shorter where the model reads fewer at once.
        text: own text that is there already: an :class:`~anchorhold.OwnText` or the folder that it was written to. It
            has to be this model's.
        cache: the folder in which own text is kept, by the digest of the weights that wrote it. Writing that was
            stopped goes on there, and a second call writes nothing. ``"auto"`` is a folder of the user's own cache;
            ``None`` keeps nothing.
        writing: further arguments of :func:`anchorhold.write_text`, such as ``{"prompts": questions, "chat": True}``.
        old_data: real old data in the place of own text: batches, or the paths of text files.
        samples: how many samples of old data are read, the first ones.
        measured: how many samples importance is measured on.
        form: of the importance; ``None`` takes the best that fits, which the plan names.
        exchange_rate: κ, the nats of the new that a nat of the old is worth; 0 holds no weights.
        share: the part of each step that distils what the model said before of the old samples; 0 for none.
        batch_size: samples that are distilled in a step.
        memory: bytes that the guard may take; by default half of what is free.
        seconds: how long measuring may take, by which the form is chosen; writing is told of beside it.
        protect: the parameters to protect, as for :class:`~anchorhold.Guard`.
        forward: how the model is called, as for :meth:`anchorhold.Guard.consolidate`.
        seed: of own text, drawn labels, and the order in which samples are distilled.
        progress: whether the plan and a bar are shown, or a function that is called with what is done, how many are
            done and how many there are.
    """

    tokens: int = TOKENS
    length: int = LENGTH
    text: OwnText | str | os.PathLike[str] | None = None
    cache: str | os.PathLike[str] | None = "auto"
    writing: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    old_data: Any = None
    samples: int = 1024
    measured: int = MEASURED
    form: Form | str | None = None
    exchange_rate: float = 1.0
    share: float = SHARE
    batch_size: int = 4
    memory: int | None = None
    seconds: float = 600.0
    protect: Protect = None
    forward: Forward | None = None
    seed: int = 0
    progress: Progress = True

    def __post_init__(self) -> None:
        least = {"tokens": 64, "length": 2, "samples": 8, "measured": 1, "batch_size": 1}
        for name, smallest in least.items():
            whole_number(name, getattr(self, name), f"a whole number of at least {smallest}", least=smallest)
        whole_number("seed", self.seed, "a whole number")
        if self.memory is not None:
            whole_number("memory", self.memory, "a whole number of bytes, at least 1", least=1)
        number("seconds", self.seconds, "a number above 0", lambda value: value > 0)
        number("exchange_rate", self.exchange_rate, "a number of at least 0 (1: a nat for a nat)", lambda k: k >= 0)
        checked_share("share", self.share, "a part of each step, from 0 (nothing is distilled) up to, but not, 1")
        if self.share == 1:
            raise ConfigurationError("share=1: nothing would be left of a step to learn by. Give 1/8, say.")
        if self.share == 0 and self.exchange_rate == 0:
            raise ConfigurationError(
                "share=0 with exchange_rate=0: nothing would keep anything. Give one of both, or leave both out."
            )
        if self.text is not None and self.old_data is not None:
            raise ConfigurationError("text= and old_data=: old data takes the place of own text. Give one of both.")
        known = sorted(inspect.signature(write_text).parameters.keys() - _NOT_OF_WRITING)
        if not isinstance(self.writing, Mapping):
            raise ConfigurationError(
                f"writing={type(self.writing).__name__}: expected arguments of write_text() by name, such as "
                '{"prompts": questions}.'
            )
        if unknown := sorted(map(str, self.writing.keys() - set(known))):
            raise ConfigurationError(
                f"writing has {unknown[0]!r}; expected arguments of write_text() among {', '.join(known)}. All else "
                "is an option of protect() itself: tokens, length, cache, forward, progress."
            )
        if isinstance(self.form, str):
            object.__setattr__(self, "form", form_by_name(self.form))
        if not (self.form is None or isinstance(self.form, Form)):
            raise ConfigurationError(f"form={self.form!r}: expected a form, its name, or None for the best that fits.")

    @classmethod
    def of(cls, options: Mapping[str, Any]) -> "Protection":
        """Return the settings that options name, or say which name is none of theirs."""
        known = {field.name for field in dataclasses.fields(cls)}
        if unknown := sorted(options.keys() - known):
            raise ConfigurationError(f"protect() has no option {unknown[0]!r}; there are {', '.join(sorted(known))}.")
        return cls(**options)

    @property
    def cache_folder(self) -> Path | None:
        """The folder of own texts, if they are kept."""
        if self.cache != "auto":
            return None if self.cache is None else Path(self.cache)
        return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "anchorhold" / "own-text"
