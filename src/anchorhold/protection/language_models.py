"""The old samples of a language model: text that it writes itself, text that it wrote before, or real old data."""

import hashlib
import json
import os
import sys
import warnings
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from anchorhold.adapters import has_adapters
from anchorhold.engine.conventions.huggingface import has_encoder, text_writer, tokens_of
from anchorhold.engine.isolation import evaluation_mode
from anchorhold.errors import (
    AnchorholdWarning,
    ConfigurationError,
    DataError,
    ModelError,
    StoreError,
    warn,
)
from anchorhold.own_text import OwnText, write_text
from anchorhold.own_text.first_look import context_of
from anchorhold.own_text.model_reader import as_writer
from anchorhold.own_text.text_folder import weights_digest
from anchorhold.own_text.whose_text import refuse_text_of_another
from anchorhold.protection.planning import timed
from anchorhold.protection.settings import Protection

WRITTEN_AT_ONCE = 32
TIMED = 8
"""Tokens that are written to see how long one takes."""


def is_tokenizer(given: object) -> bool:
    """Whether something is a tokenizer, as Hugging Face's libraries have them."""
    return callable(getattr(given, "decode", None)) and callable(getattr(given, "encode", None))


def refuse_model(model: object) -> None:
    """Raise an error for a model that nothing can be measured of: no module, without weights, frozen, quantised."""
    if not isinstance(model, nn.Module):
        raise ModelError(f"A model of type {type(model).__name__}; expected a torch.nn.Module.")
    every = dict(model.named_parameters())
    if absent := [name for name, p in every.items() if p.is_meta]:
        raise ModelError(
            f"{absent[0]!r} and {len(absent) - 1} more of {type(model).__name__} are on the meta device, without "
            "values: nothing can be measured. Load the weights first, without offloading to disk. What a guard would "
            "take is known without them: Guard(model, 'EWC', form='kronecker').cost()."
        )
    trained = {id(p) for p in every.values() if p.requires_grad}
    few_bits = [name for name, p in every.items() if not (p.is_floating_point() or p.is_complex())]
    if few_bits and not has_adapters(model, trained):
        raise ModelError(
            f"{few_bits[0]!r} and {len(few_bits) - 1} more of {type(model).__name__} are quantised "
            f"({every[few_bits[0]].dtype}), and the model has no adapter: such weights are neither trained nor "
            "measured. Add an adapter first, peft.get_peft_model(model, LoraConfig(...)), and protect what it returns."
        )
    if not trained:
        raise ModelError(
            f"{type(model).__name__} has no parameter with requires_grad=True, so there is nothing to protect. "
            "Unfreeze what will be trained, or add the adapter, before protect()."
        )


def refuse_other_tokenizer(model: nn.Module, tokenizer: Any) -> None:
    """Raise an error for a tokenizer that cannot be the model's: it has more tokens than the model has rows."""
    if isinstance(tokenizer, str):
        raise ConfigurationError(
            f"A tokenizer {tokenizer!r}, which is a name; expected the tokenizer itself, "
            f"AutoTokenizer.from_pretrained({tokenizer!r})."
        )
    writer = text_writer(model)
    known = min(tokens_of(writer), default=None) if writer is not None else None
    own = len(tokenizer) if hasattr(tokenizer, "__len__") else None
    if known is None or own is None:
        return
    if own > known:
        raise ConfigurationError(
            f"The tokenizer has {own:,} tokens, and {type(model).__name__} knows {known:,}: expected the model's own. "
            "Give that, or call model.resize_token_embeddings(len(tokenizer)) before protect()."
        )
    if own < known / 2:
        warn(
            f"The tokenizer has {own:,} tokens, and {type(model).__name__} knows {known:,}, more than twice as many. "
            "If that is not the model's own tokenizer, texts will be read wrongly."
        )


class Writing:
    """Own text that is to be written, or was in part.

    Args:
        model: whose text it is.
        tokenizer: of it.
        settings: of the user.

    Raise an error for a model that does not write, and for a folder that cannot be written to.
    """

    def __init__(self, model: nn.Module, tokenizer: Any, settings: Protection) -> None:
        asked = text_writer(model)
        if asked is None or has_encoder(asked):
            raise ModelError(
                f"{type(model).__name__} does not write text from left to right, so it has no own text: expected a "
                "causal language model, such as those of AutoModelForCausalLM. Protect any other model by real old "
                "data: protect(model, batches)."
            )
        self.writer = as_writer(model, settings.forward, cache=True)
        self.tokenizer = tokenizer
        self.model = model
        self.settings = settings
        context = context_of(self.writer)
        self.length = settings.length if context is None else min(settings.length, context - 1)
        self.pieces = max(2, settings.tokens // self.length)
        self.together = min(WRITTEN_AT_ONCE, self.pieces)
        self.folder = self._folder()

    @property
    def written(self) -> int:
        """How many pieces are in the folder."""
        if self.folder is None or not (self.folder / "asked.json").is_file():
            return 0
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", AnchorholdWarning)  # that some are missing is why they are counted
            return min(self.pieces, len(OwnText.load(self.folder)))

    @property
    def missing(self) -> int:
        """How many pieces are still to be written."""
        return self.pieces - self.written

    def seconds(self) -> float:
        """Return how long it will take, by some tokens that are written and thrown away."""
        if not self.missing:
            return 0.0
        device, length = self.writer.device, min(TIMED, self.length)
        self._write(self.together, 1, None, None)  # the first call of a model takes longer
        few, more = (timed(partial(self._write, self.together, n, None, None), device) for n in (1, length))
        batches = -(-self.missing // self.together)
        return few + batches * self.length * max(0.0, more - few) / max(1, length - 1)

    def write(self, progress: Callable[[int, int], object]) -> OwnText:
        """Return the text, of which what is there already is read."""
        return self._write(self.pieces, self.length, self.folder, progress)

    def _write(
        self, pieces: int, length: int, folder: Path | None, progress: Callable[[int, int], object] | None
    ) -> OwnText:
        given = {"batch_size": self.together, "seed": self.settings.seed, **self.settings.writing}
        own = {"tokenizer": self.tokenizer, "forward": self.settings.forward, "store": folder, "progress": progress}
        with warnings.catch_warnings():
            if folder is None and progress is None:  # a try, of which nothing is kept
                warnings.simplefilter("ignore", AnchorholdWarning)
                return write_text(self.model, pieces, length, **{**given, **own})
            return write_text(self.model, pieces, length, **{**given, **own})

    def _folder(self) -> Path | None:
        """Return the folder of this text, by all that it depends on; made, so that it is known to be writable."""
        root = self.settings.cache_folder
        if root is None:
            return None
        asked = [
            weights_digest(self.writer.model),
            tokenizer_digest(self.tokenizer),
            self.length,
            self.settings.seed,
            sorted((name, repr(value)) for name, value in self.settings.writing.items()),
        ]
        folder = root / hashlib.sha256(json.dumps(asked).encode()).hexdigest()[:24]
        try:
            folder.mkdir(parents=True, exist_ok=True)
            (folder / ".writable").touch()
            (folder / ".writable").unlink()
        except OSError as error:
            if self.settings.cache == "auto":
                warn(
                    f"Own text is not kept: {str(root)!r} cannot be written to ({error}). Writing that is stopped "
                    "begins anew. Give cache= another folder."
                )
                return None
            raise StoreError(
                f"cache={str(root)!r} cannot be written to ({error}). Give another folder, or cache=None to keep no "
                "own text."
            ) from error
        return folder


def tokenizer_digest(tokenizer: Any) -> str:
    """Return a digest of a tokenizer's tokens, so that a text of another tokenizer's is not taken."""
    vocabulary = tokenizer.get_vocab() if hasattr(tokenizer, "get_vocab") else {}
    ends = [getattr(tokenizer, f"{name}_token_id", None) for name in ("bos", "eos", "pad")]
    return hashlib.sha256(json.dumps([sorted(vocabulary.items()), ends]).encode()).hexdigest()


def given_text(model: nn.Module, tokenizer: Any, given: object) -> OwnText:
    """Return own text that was given, or read from its folder, once it is known to be this model's.

    Raise :class:`StateError` for the text of another model: its log-probabilities are others.
    """
    if isinstance(given, str | os.PathLike):
        if Path(given).is_file():
            raise ConfigurationError(
                f"text={str(given)!r} is a file; expected the folder that write_text(store=) was given. Files of text "
                "are old data: old_data=[paths]."
            )
        text, name = OwnText.load(given, tokenizer), repr(str(given))
    elif isinstance(given, OwnText):
        text, name = given, "The text given"
    else:
        raise ConfigurationError(
            f"text={type(given).__name__}: expected an OwnText, or the folder that write_text(store=) was given. Files "
            "of text are old data: old_data=[paths]."
        )
    if not len(text):
        raise DataError(f"{name} has no pieces. Write some: anchorhold.write_text(model, 512, store=folder).")
    writer = as_writer(model, None, cache=False)
    instead = "Give text that this model wrote, or leave text= out to have it written."
    with evaluation_mode(model, model.parameters()):
        refuse_text_of_another(text, writer, name, instead)
    return text


def read_text_files(paths: Any, tokenizer: Any, length: int, samples: int) -> list[dict[str, Tensor]]:
    """Return the first pieces of text files, as a language model's batches of one length each.

    Raise :class:`DataError` for a file that is missing, binary or empty.
    """
    if not is_tokenizer(tokenizer):
        raise ConfigurationError(
            "The old data is given as the paths of text files, and there is no tokenizer to read them with. Give both, "
            "protect(model, tokenizer, old_data=paths). Texts themselves are given as batches of their tokens."
        )
    pieces = list(_pieces(paths, tokenizer, length, samples))
    if not pieces:
        raise DataError(f"No text in {', '.join(map(repr, map(str, paths)))}: expected a few hundred pieces of it.")
    padding = next((t for t in (tokenizer.pad_token_id, tokenizer.eos_token_id) if t is not None), 0)
    batches = []
    for first in range(0, len(pieces), 8):
        rows = pieces[first : first + 8]
        tokens = torch.full((len(rows), max(map(len, rows))), padding)
        mask = torch.zeros_like(tokens)
        for row, piece in enumerate(rows):
            tokens[row, : len(piece)] = torch.tensor(piece)
            mask[row, : len(piece)] = 1
        batches.append({"input_ids": tokens, "attention_mask": mask, "labels": tokens.masked_fill(mask == 0, -100)})
    return batches


def _pieces(paths: Any, tokenizer: Any, length: int, samples: int) -> Iterator[list[int]]:
    found = 0
    for path in map(Path, paths):
        if path.suffix.lower() in {".jsonl", ".ndjson", ".json"}:
            raise DataError(
                f"old_data: {str(path)!r} is JSON, whose marks and keys would be kept as if they were old text. Give "
                "files of the text alone, or batches of its tokens."
            )
        try:
            content = path.read_bytes()
        except OSError as error:
            raise DataError(
                f"old_data: {str(path)!r} cannot be read ({error}). Give the path of a text file."
            ) from error
        try:
            text = content.decode("utf-8")
        except UnicodeDecodeError as error:
            raise _binary(path, f"{error.reason} at byte {error.start}") from error
        if "\0" in text:
            raise _binary(path, f"a zero at character {text.index(chr(0))}")
        begin = [] if tokenizer.bos_token_id is None else [tokenizer.bos_token_id]
        tokens = tokenizer.encode(text, add_special_tokens=False)
        step = length - len(begin)
        for first in range(0, len(tokens), step):
            piece = begin + tokens[first : first + step]
            if len(piece) > 1:
                yield piece
                found += 1
            if found == samples:
                return


def _binary(path: Path, why: str) -> DataError:
    return DataError(f"old_data: {str(path)!r} is no text in UTF-8 ({why}). Give text files, or batches of tokens.")


def is_paths(given: object) -> bool:
    """Whether old data is given as the paths of files."""
    several = given if isinstance(given, list | tuple) else [given]
    return bool(several) and all(isinstance(each, str | os.PathLike) for each in several)


def tokens_to_try(model: nn.Module, length: int, rows: int) -> dict[str, Tensor]:
    """Return a batch of drawn tokens, to be measured before any text is there."""
    writer = text_writer(model)
    known = max(2, min(tokens_of(writer), default=2) if writer is not None else 2)
    tokens = torch.randint(0, known, (rows, length), generator=torch.Generator().manual_seed(0))
    return {"input_ids": tokens, "attention_mask": torch.ones_like(tokens), "labels": tokens}


class Bar:
    """A bar of progress on the error stream, or a function's in its place.

    Args:
        progress: as in :class:`~anchorhold.protection.Protection`.
        what: is done.
    """

    def __init__(self, progress: bool | Callable[[str, int, int], object], what: str) -> None:
        self._progress = progress
        self._what = what
        self.begin()

    def begin(self) -> None:
        """Show the next call as the first."""
        self._quarter = -1

    def __call__(self, done: int, wanted: int) -> None:
        """Show how much is done."""
        if callable(self._progress):
            self._progress(self._what, done, wanted)
            return
        if not self._progress:
            return
        filled, quarter = 30 * done // wanted, 4 * done // wanted
        line = f"{self._what} [{'#' * filled}{'.' * (30 - filled)}] {done:,} of {wanted:,}"
        if sys.stderr.isatty():
            print(f"\r{line}", end="\n" if done == wanted else "", file=sys.stderr, flush=True)
        elif quarter > self._quarter:  # a log takes a line at each quarter
            print(line, file=sys.stderr, flush=True)
        self._quarter = quarter


class Shown(list[Any]):
    """Batches that show how far each pass over them has come.

    Args:
        batches: to be gone through.
        bar: that is shown.
    """

    def __init__(self, batches: list[Any], bar: Bar) -> None:
        super().__init__(batches)
        self._bar = bar

    def __iter__(self) -> Iterator[Any]:
        self._bar.begin()
        for place, batch in enumerate(super().__iter__()):
            yield batch
            self._bar(place + 1, len(self))
