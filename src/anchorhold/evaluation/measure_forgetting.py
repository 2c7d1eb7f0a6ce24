"""What a language model has forgotten and learned: one call, for models that anybody trained."""

import contextlib
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from torch import nn

from anchorhold.engine.isolation import evaluation_mode
from anchorhold.errors import AnchorholdError, ConfigurationError, DataError, warn
from anchorhold.evaluation.documents import Document, Texts, read_documents
from anchorhold.evaluation.folders import Loading, check_folder, load_model, load_tokenizer
from anchorhold.evaluation.report import Forgotten, Part, Row, column, mean_row, row_of
from anchorhold.evaluation.scores import KeptLogits, Reader, losses_alone, sums_together
from anchorhold.evaluation.windows import Encoded, encode, same_tokens
from anchorhold.own_text.beginnings import Beginnings
from anchorhold.own_text.first_look import context_of, refuse_looking_ahead, vocabulary_of
from anchorhold.own_text.model_reader import as_writer
from anchorhold.own_text.text_folder import is_whole
from anchorhold.own_text.whose_text import refuse_text_of_another
from anchorhold.own_text.write import write_text
from anchorhold.own_text.written_text import OwnText
from anchorhold.settings import whole_number

Given = nn.Module | str | os.PathLike[str]
"""A causal language model, or the folder of one, or of an adapter."""

Progress = Callable[[str, int, int], object]
"""Called with what is being done, how much of it is done, and how much there is."""

CONTEXT = 2048
PIECES, LENGTH = 64, 128
OWN = "own text"


class ForgettingInterrupted(KeyboardInterrupt):
    """An interruption, with what was measured before it in ``report``."""

    def __init__(self, report: Forgotten) -> None:
        self.report = report
        super().__init__("Interrupted; what was measured before is in .report of this exception.")


def forgetting(
    before: Given,
    after: "Given | Sequence[Given] | Mapping[str, Given]",
    text: Texts | None = None,
    *,
    data: Texts | None = None,
    own_text: "OwnText | str | os.PathLike[str] | bool | None" = None,
    pieces: int | None = None,
    length: int | None = None,
    new: Texts | None = None,
    tokenizer: Any = None,
    separator: str | None = None,
    context: int | None = None,
    start: int | None = None,
    base: str | os.PathLike[str] | None = None,
    device: torch.device | str | None = None,
    dtype: torch.dtype | None = None,
    progress: Progress | None = None,
) -> Forgotten:
    r"""Return what a language model has forgotten, and what it has learned.

    >>> print(anchorhold.forgetting("base", "tuned", ["english.txt", "python.txt"]))

    Measured are KL(p_old‖p_new) of the next token, and the loss of both models, in nats a token, as the mean over all
    scored tokens of a kind of text; and the losses in bits a byte, nats·tokens / (bytes·ln 2), which compares models
    with different tokenizers too. Each has a standard error over documents. A file or folder is a kind; documents are
    the files of a folder, the lines of JSONL, or the parts of a text file between two separators. The models are asked
    in eval mode and left as they were. The numbers are the same again up to rounding, whatever the memory's size.

    Args:
        before: the model as it was: the folder of one, with its tokenizer, or a module.
        after: the model as it is, or several of them, or by name: folders, also of adapters, or modules.
        text: files or folders of text that was to be kept, or documents by kind, ``{"english": ["…", "…"]}``.
        data: JSONL files of the same: rows with ``text``, with ``prompt`` and ``completion``, or with ``messages``, of
            which completions and last answers alone are scored. A key ``kind`` names the kind of a row.
        own_text: text that the model before wrote: ``True`` to have it written now, a folder to keep it in or that it
            lies in, or an :class:`~anchorhold.OwnText`. By default it is written where no other text is given.
        pieces: how many pieces are written, 64 by default. Own text that is there already has to have as many.
        length: tokens of a piece at most, 128 by default.
        new: files or folders of what was to be learned, read as ``text`` is.
        tokenizer: of modules, and of folders that have none.
        separator: what stands between the documents of a text file; by default a file is one document.
        context: the length of the windows that long documents are cut into; by default as much as the models read, and
            2048 at most.
        start: the token in front of every text, where the model's own token of a beginning or an end is not meant.
        base: the folder that adapters were trained on, if it is neither the one they name nor ``before``.
        device: where folders are loaded to; a GPU if there is one.
        dtype: in which type; by default float32 on a CPU and the files' own on a GPU.
        progress: called as ``progress(what, done, wanted)``.

    Raise DataError for text that cannot be scored, ConfigurationError for folders and settings, and ModelError for
    models that cannot be loaded or are no causal language models; of several models after, those that fail are left out
    of the report, whose notes say why, unless all fail. Raise ForgettingInterrupted, a KeyboardInterrupt with the
    ``report`` so far, on Ctrl-C.
    """
    (name, _), *later = _labelled(before, after)
    asked = asked_for(
        text, data=data, own_text=own_text, pieces=pieces, length=length, new=new, tokenizer=tokenizer,
        separator=separator, context=context, start=start, base=base, device=device, dtype=dtype, progress=progress,
    )  # fmt: skip
    with comparison(name, before, asked, several=len(later) > 1) as compared:
        return compared.with_models(later)


@dataclass
class Asked:
    """What is to be measured, and how, as :func:`forgetting` takes it."""

    text: list[Document]
    new: list[Document]
    own_text: "OwnText | str | os.PathLike[str] | bool"
    pieces: int | None
    length: int | None
    tokenizer: Any
    context: int | None
    start: int | None
    loading: Loading
    progress: Progress


def asked_for(
    text: Texts | None,
    *,
    data: Texts | None = None,
    own_text: "OwnText | str | os.PathLike[str] | bool | None" = None,
    pieces: int | None = None,
    length: int | None = None,
    new: Texts | None = None,
    tokenizer: Any = None,
    separator: str | None = None,
    context: int | None = None,
    start: int | None = None,
    base: str | os.PathLike[str] | None = None,
    device: torch.device | str | None = None,
    dtype: torch.dtype | None = None,
    progress: Progress | None = None,
) -> Asked:
    """Return what :func:`forgetting` was asked for, read and checked. Raise what that raises of it."""
    documents = [
        *read_documents(text, option="text", separator=separator),
        *read_documents(data, option="data", rows=True),
    ]
    learned = read_documents(new, option="new", separator=separator)
    context = None if context is None else whole_number("context", context, "a whole number, 2 or more", least=2)
    for name, given in (("pieces", pieces), ("length", length)):
        if given is not None:
            whole_number(name, given, "a whole number of at least 1", least=1)
    if dtype is not None and not (isinstance(dtype, torch.dtype) and dtype.is_floating_point):
        raise ConfigurationError(f"dtype={dtype!r}: expected a floating-point type, such as torch.bfloat16.")
    loading = Loading(_device(device), dtype, base)
    own_text = not documents if own_text is None else own_text
    if own_text is False and not documents:
        raise ConfigurationError("Nothing to measure on: own_text=False, and neither text nor data. Give one of them.")
    return Asked(
        documents, learned, own_text, pieces, length, tokenizer, context, start, loading, progress or _no_progress
    )


@contextlib.contextmanager
def comparison(name: str, before: Given, asked: Asked, *, several: bool) -> Iterator["Comparison"]:
    """Load the model before, and read the text, for models after that are compared with it while this lasts.

    Args:
        name: what the model before is called.
        before: the model.
        asked: on what models are compared.
        several: whether there are several models after, for which the model before reads the text once.
    """
    opened = _Opened("before", name, before, asked.loading, None, asked.tokenizer)
    with opened.evaluated():
        reader = opened.reader(asked.start)
        if several:
            reader = replace(reader, kept=KeptLogits.beside(reader.model, reader.writer.device))
        own = _own_documents(opened, reader, asked)
        yield Comparison(opened.path, _ReadText(reader, asked, own))


class Comparison:
    """A model before that is in memory, with the text on which models after are compared with it."""

    def __init__(self, path: Path | None, text: "_ReadText") -> None:
        self._path = path
        self._text = text

    def with_models(self, after: "Sequence[tuple[str, Given]]") -> Forgotten:
        """Return the report of some models with their names, of which one at a time is in memory."""
        before, asked, report = self._text.before, self._text.asked, _Report(self._text)
        names = tuple(name for name, _ in after)
        try:
            for name, model in after:
                try:
                    opened = _Opened("after", name, model, asked.loading, self._path, before.tokenizer)
                    with opened.evaluated():
                        report.add(opened.reader(asked.start))
                    del opened
                except AnchorholdError as error:
                    # One checkpoint that has diverged does not cost what was measured of the others.
                    report.leave_out(name, error)
        except KeyboardInterrupt as interruption:
            raise ForgettingInterrupted(report.made(names, interrupted=True)) from interruption
        return report.made(names, interrupted=False)


class _Opened:
    """A model that is in memory, with its tokenizer."""

    def __init__(
        self, label: str, name: str, given: Given, loading: Loading, before: Path | None, tokenizer: Any
    ) -> None:
        self.name = name
        self.path = None if isinstance(given, nn.Module) else check_folder(given, label)
        own = None
        if self.path is None:
            assert isinstance(given, nn.Module)
            self.model = given
        else:
            own = load_tokenizer(self.path)
            self.model = load_model(self.path, label, loading, before)
        self.tokenizer = tokenizer if own is None else own

    @contextlib.contextmanager
    def evaluated(self) -> Iterator[None]:
        """Put the model in eval mode, without gradients, and back."""
        with evaluation_mode(self.model, self.model.parameters()):
            yield

    def reader(self, start: int | None) -> Reader:
        """Return how the model is asked, or refuse one that is no causal language model."""
        writer = as_writer(self.model, None, cache=False)
        vocabulary, context = vocabulary_of(writer), context_of(writer)
        if start is not None:
            Beginnings(writer, vocabulary, self.tokenizer).start(start)
        refuse_looking_ahead(writer, [start or 0], vocabulary, context or CONTEXT)
        return Reader(self.name, writer, self.tokenizer, vocabulary, context)


@dataclass
class _Own:
    """The old model's own text: as the tokens that it wrote, and as documents for other tokenizers."""

    encoded: list[Encoded] = field(default_factory=list)
    documents: list[Document] = field(default_factory=list)


class _ReadText:
    """The documents as the model before reads them."""

    def __init__(self, before: Reader, asked: Asked, own: _Own) -> None:
        self.before = before
        self.asked = asked
        self.own = own
        self.notes: list[str] = []
        self.start = _start_of(before, asked)
        documents = [*asked.text, *asked.new]
        if documents and before.tokenizer is None:
            raise ConfigurationError(
                f"There is no tokenizer of {before.name}, and text is given. Copy the tokenizer's files "
                "into its folder, or give tokenizer=."
            )
        self.encoded = encode(documents, before.tokenizer, self.start, before.vocabulary)
        unknown = getattr(before.tokenizer, "unk_token_id", None)
        found = sum(int((each.tokens == unknown).sum()) for each in self.encoded) if unknown is not None else 0
        if found and unknown != self.start:
            self.notes.append(
                f"{found:,} tokens of the text are unknown to the tokenizer of {before.name}, so its bits a byte are "
                "too few."
            )


class _Report:
    """Scores one model after another, and gathers rows."""

    def __init__(self, text: _ReadText) -> None:
        self._before, self._asked, self._own = text.before, text.asked, text.own
        self._start, self._encoded = text.start, text.encoded
        self._rows: list[Row] = []
        self._notes = list(text.notes)
        self._contexts: dict[str, int] = {}
        self._errors: dict[str, AnchorholdError] = {}

    def add(self, after: Reader) -> None:
        """Score a model after, kind by kind."""
        before, documents = self._before, [*self._asked.text, *self._asked.new, *self._own.documents]
        context = self._context(after)
        alike, encoded = self._as_read_by(after)
        if not alike:
            self._notes.append(
                f"{after.name} reads other tokens than {before.name}, so there is no KL, and losses a token are of "
                "different tokens. Compare bits a byte."
            )
        elif after.vocabulary != before.vocabulary:
            self._notes.append(
                f"The logits of {after.name} are over {after.vocabulary:,} tokens, those of {before.name} over "
                f"{before.vocabulary:,}, so there is no KL. Compare losses or bits a byte."
            )
        own = encode(self._own.documents, before.tokenizer, self._start, before.vocabulary) if not alike else []
        old = [*self._encoded, *(self._own.encoded if alike else own)]
        new = old if alike else encoded
        parts: list[tuple[Part, int]] = [("text", len(self._asked.text)), ("new", len(self._asked.new))]
        parts.append(("own text", len(old) - len(self._encoded)))
        begin, places = 0, {}
        for part, count in parts:
            places[part] = range(begin, begin + count)
            begin += count
        assert begin == len(new) and (alike or len(new) == len(documents))
        order: tuple[Part, ...] = ("text", "own text", "new")
        for part in order:
            chosen = places[part]
            kinds = list(dict.fromkeys(old[i].kind for i in chosen))
            rows = []
            for kind in kinds:
                here = [i for i in chosen if old[i].kind == kind]
                rows.append(
                    self._row(after, part, kind, [old[i] for i in here], [new[i] for i in here], context, alike)
                )
                self._rows.append(rows[-1])
            if len(rows) > 1:
                self._rows.append(mean_row(rows))

    def _row(
        self,
        after: Reader,
        part: Part,
        kind: str,
        old: list[Encoded],
        new: list[Encoded],
        context: int,
        alike: bool,
    ) -> Row:
        before, kl = self._before, None
        count, count_after = (column([each.scored for each in own]) for own in (old, new))
        wanted = int(count.sum()) if alike else int(count.sum() + count_after.sum())
        what = f"{after.name}: {kind}"
        self._asked.progress(what, 0, wanted)

        def done(scored: int) -> None:
            self._asked.progress(what, scored, wanted)

        if alike:
            sums = sums_together(old, before, after, context, done)
            losses, losses_after, kl = sums.before, sums.after, sums.kl
        else:
            losses = losses_alone(old, before, context, done)
            losses_after = losses_alone(new, after, context, lambda scored: done(int(count.sum()) + scored))
        sizes = column([each.bytes for each in old])
        return row_of(
            after.name, part, kind, count, count_after, sizes, losses, losses_after, kl, same_tokens=alike
        )  # fmt: skip

    def _as_read_by(self, after: Reader) -> tuple[bool, list[Encoded]]:
        """Return whether a model after reads the same tokens, and all documents as it reads them if it does not."""
        before = self._before
        if after.tokenizer is before.tokenizer:
            return True, []
        documents = [*self._asked.text, *self._asked.new, *self._own.documents]
        # With the start token of the model before: a config may name another one though the tokenizer is the same.
        with contextlib.suppress(ConfigurationError):
            own = encode(self._own.documents, before.tokenizer, self._start, before.vocabulary)
            found = encode(documents, after.tokenizer, self._start, after.vocabulary)
            if same_tokens([*self._encoded, *own], found):
                return True, []
        return False, encode(documents, after.tokenizer, _start_of(after, self._asked), after.vocabulary)

    def _context(self, after: Reader) -> int:
        read = [reader.context for reader in (self._before, after) if reader.context is not None]
        asked = self._asked.context
        if asked is not None and read and asked > min(read):
            raise ConfigurationError(
                f"context={asked}: {self._before.name} and {after.name} read {min(read)} tokens at most. Give no more, "
                "or leave it out."
            )
        found = asked or min([CONTEXT, *read])
        if self._contexts and found not in self._contexts.values():
            self._notes.append(
                f"{after.name} was measured in windows of {found} tokens, the models above of others: its losses are "
                f"not comparable with theirs. Give context={min(found, *self._contexts.values())} for all."
            )
        self._contexts[after.name] = found
        return found

    def leave_out(self, name: str, error: AnchorholdError) -> None:
        """Note that a model could not be measured."""
        self._errors[name] = error
        self._notes.append(f"{name} was not measured whole. {error}")

    def made(self, names: tuple[str, ...], *, interrupted: bool) -> Forgotten:
        """Return the report of what was measured so far of models; raise the first one's error if all failed."""
        if len(self._errors) == len(names):
            raise next(iter(self._errors.values()))
        parameter = next(self._before.model.parameters(), None)
        settings = {
            "context": self._contexts,
            "start": self._start,
            "device": None if parameter is None else str(parameter.device),
            "dtype": None if parameter is None else str(parameter.dtype).removeprefix("torch."),
        }
        notes = list(self._notes)
        alone = sorted({row.kind for row in self._rows if row.documents == 1})
        if alone:
            notes.append(
                f"{', '.join(alone)}: one document, so there is no standard error. Give folders of files, JSONL, or "
                "separator=, --separator in a shell."
            )
        if interrupted:
            measured = ", ".join(dict.fromkeys(f"{row.model}: {row.kind}" for row in self._rows)) or "nothing"
            notes.append(f"Interrupted. Measured were {measured}; the rest is missing.")
        complete = not interrupted and not self._errors
        return Forgotten(self._before.name, names, tuple(self._rows), settings, tuple(notes), complete)


def _labelled(before: Given, after: "Given | Sequence[Given] | Mapping[str, Given]") -> list[tuple[str, Given]]:
    """Return the models with their names, that before first; check folders, before anything is loaded."""
    if isinstance(after, Mapping):
        later = [(str(name), model) for name, model in after.items()]
    else:
        several = [after] if isinstance(after, nn.Module | str | os.PathLike) else list(after)
        numbered = len(several) > 1
        later = [
            ("" if not isinstance(each, nn.Module) else f"after[{k}]" if numbered else "after", each)
            for k, each in enumerate(several)
        ]
    if not later:
        raise ConfigurationError("after is empty; expected at least one model to compare with the one before.")
    given = [("before" if isinstance(before, nn.Module) else "", before), *later]
    paths: list[Path | None] = []
    for k, (name, model) in enumerate(given):
        label = "before" if k == 0 else "after"
        if not isinstance(model, nn.Module | str | os.PathLike):
            raise ConfigurationError(
                f"{name or label} is of type {type(model).__name__}; expected a causal language model, or its folder."
            )
        paths.append(None if isinstance(model, nn.Module) else check_folder(model, label))
    if any(model is before for _, model in later if isinstance(model, nn.Module)):
        raise ConfigurationError(
            "before and after are the same module, so nothing can differ. Copy it before training: "
            "before = copy.deepcopy(model)."
        )
    short = [name or (path.resolve().name if path else "") for (name, _), path in zip(given, paths, strict=True)]
    names = [
        name if short.count(name) == 1 or path is None else str(path) for name, path in zip(short, paths, strict=True)
    ]
    if len(set(names[1:])) < len(names) - 1:
        raise ConfigurationError(f"after names a model twice: {', '.join(names[1:])}. Give each once.")
    if (same := paths[0]) is not None and any(path is not None and path.samefile(same) for path in paths[1:]):
        warn(f"{str(same)!r} is both before and after: nothing will have changed.")
    return [(name, model) for name, (_, model) in zip(names, given, strict=True)]


def _own_documents(opened: _Opened, reader: Reader, asked: Asked) -> _Own:
    """Return the old model's own text, read from a folder or written now."""
    given = asked.own_text
    if given is False:
        return _Own()
    is_given = isinstance(given, OwnText)
    if isinstance(given, OwnText):
        text = given
    elif not isinstance(given, bool) and is_whole(given):
        text, is_given = OwnText.load(given, reader.tokenizer), True
    else:
        if not isinstance(given, bool):
            _refuse_other_files(Path(given))
        length = asked.length or LENGTH
        length = length if reader.context is None else min(length, reader.context - 1)
        text = write_text(
            opened.model, asked.pieces or PIECES, length, tokenizer=reader.tokenizer, start=asked.start,
            store=None if isinstance(given, bool) else given,
            progress=lambda done, wanted: asked.progress(f"{reader.name} writes", done, wanted),
        )  # fmt: skip
    where = "The own text" if isinstance(given, OwnText | bool) else f"The own text in {str(given)!r}"
    _refuse_other_sizes(text, where, asked)
    own = _Own()
    for piece in text.pieces:
        place = f"own text, piece {piece.number}"
        if int(piece.tokens.max()) >= reader.vocabulary:
            raise DataError(
                f"{place} has the token {int(piece.tokens.max())}, and {reader.name} knows {reader.vocabulary}: it is "
                "the text of another model. Give the folder of this one's, or another folder to write it to."
            )
        written = ""
        if reader.tokenizer is not None:
            whole, head = (
                reader.tokenizer.decode(part.tolist(), skip_special_tokens=True)
                for part in (piece.tokens, piece.tokens[: piece.begun])
            )
            written = whole[len(head) :]
        own.encoded.append(Encoded(OWN, place, piece.tokens, piece.begun, len(written.encode())))
        if written:
            own.documents.append(Document(OWN, place, written))
    if is_given:
        instead = f"Give the folder of what {reader.name} wrote, or another folder to write it to."
        refuse_text_of_another(text, as_writer(opened.model, None, cache=False), where, instead)
    if not own.encoded:
        raise DataError("The own text has no pieces. Give another folder, or leave it out to have some written.")
    return own


def _refuse_other_sizes(text: OwnText, where: str, asked: Asked) -> None:
    """Refuse own text with fewer or more pieces than were asked for, or with longer ones."""
    count, longest = len(text), max((len(piece.written) for piece in text.pieces), default=0)
    if asked.pieces is not None and count != asked.pieces:
        raise ConfigurationError(
            f"{where} has {count} pieces, and pieces={asked.pieces}, --pieces in a shell. Leave pieces out to measure "
            f"on the {count}, or give a new folder, to which {asked.pieces} are written."
        )
    if asked.length is not None and longest > asked.length:
        raise ConfigurationError(
            f"{where} has pieces of {longest} tokens, and length={asked.length}, --length in a shell. Leave length out "
            "to measure on those, or give a new folder, to which shorter ones are written."
        )


def _refuse_other_files(folder: Path) -> None:
    """Refuse a folder with files of a user's own: text is written to it, and theirs is not read."""
    if not folder.is_dir() or (folder / "asked.json").exists():
        return
    others = sorted(file.name for file in folder.iterdir() if not file.name.startswith((".", "pieces-")))
    if others:
        raise ConfigurationError(
            f"own_text: the folder {str(folder)!r} has {others[0]!r} in it, and no text that a model wrote. Text that "
            "the model before writes would be added there. Give a new folder; text of your own is text=, --text in a "
            "shell."
        )


def _start_of(reader: Reader, asked: Asked) -> int | None:
    """Return the token in front of a text: that of a beginning, or the end that separated texts in training."""
    try:
        (start,) = Beginnings(reader.writer, reader.vocabulary, reader.tokenizer).start(asked.start)
    except ConfigurationError:
        return None
    return start


def _no_progress(_what: str, _done: int, _wanted: int) -> None:
    """Show nothing."""


def _device(given: torch.device | str | None) -> torch.device:
    try:
        found = torch.device(given or ("cuda" if torch.cuda.is_available() else "cpu"))
    except (RuntimeError, TypeError) as error:
        raise ConfigurationError(f"device={given!r}: expected cpu, cuda or cuda:1.") from error
    if found.type == "cuda" and not torch.cuda.is_available():
        raise ConfigurationError(f"device={given!r}, and torch sees no GPU here. Leave it out, or give cpu.")
    return found
