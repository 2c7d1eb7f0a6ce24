"""The texts that a model is scored on: read from files, folders and JSONL, each with the kind that it belongs to.

A file or a folder that was named is a kind, and so is each value of the key ``kind`` in JSONL. A kind's documents are
what standard errors are taken over: the files of a folder, the lines of JSONL, or the parts of a text file between two
separators.
"""

import json
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from anchorhold.errors import ConfigurationError, DataError, warn

PathName = str | os.PathLike[str]
Texts = PathName | Sequence[PathName] | Mapping[str, Iterable[str | Mapping[str, Any]]]
"""The path of a file or folder, several of them, or documents by kind: each a text, or a row as a line of JSONL has."""

ROWS = '{"text": …}, {"prompt": …, "completion": …} or {"messages": […]}'
_JSONL = (".jsonl", ".ndjson")
_SHAPES = (("text",), ("prompt", "completion"), ("messages",))


@dataclass(frozen=True)
class Document:
    """One text.

    Args:
        kind: what it belongs to.
        place: where it comes from, for messages.
        text: what is scored.
        prompt: what is read in front of the text and not scored.
        messages: of a chat, of which the last one is scored; ``text`` is its content, and ``prompt`` is then empty.
    """

    kind: str
    place: str
    text: str
    prompt: str = ""
    messages: tuple[Mapping[str, Any], ...] | None = None


def read_documents(
    given: Texts | None, *, option: str, separator: str | None = None, rows: bool = False
) -> list[Document]:
    """Return the documents of some files, folders or mappings, in the order given.

    Args:
        given: what to read.
        option: what the argument is called, for messages.
        separator: what stands between the documents of a text file; by default a file is one document.
        rows: whether files are JSONL whatever their name ends with.

    Raise DataError for a file that is missing, binary, not UTF-8, or has a line that is no document, and where nothing
    is left to score. Warn of documents that are left out because they are empty.
    """
    if given is None:
        return []
    if isinstance(given, Mapping):
        found = []
        for kind, own in ((str(name), documents) for name, documents in given.items()):
            if isinstance(own, str | Mapping) or not isinstance(own, Iterable):
                raise ConfigurationError(
                    f"{option}[{kind!r}] is of type {type(own).__name__}; expected a list of texts: {{{kind!r}: ['…', "
                    "'…']}."
                )
            for number, row in enumerate(own):
                place = f"{option}[{kind!r}][{number}]"
                found.append(_document({"text": row} if isinstance(row, str) else row, kind, place))
    else:
        several = [given] if isinstance(given, str | os.PathLike) else list(given)
        if not several:
            raise ConfigurationError(f"{option} is empty; expected at least one file or folder.")
        paths = [_checked_path(path, option) for path in several]
        # A kind is the file's name, or the whole path where two have the same name.
        names = [path.name or str(path) for path in paths]
        kinds = {path: name if names.count(name) == 1 else str(path) for path, name in zip(paths, names, strict=True)}
        found = [each for path, kind in kinds.items() for each in _read(path, kind, separator, rows=rows)]
    return _without_empty(found, option)


def _checked_path(given: object, option: str) -> Path:
    if not isinstance(given, str | os.PathLike):
        raise ConfigurationError(
            f"{option} has something of type {type(given).__name__}; expected paths of files, or a mapping of kinds to "
            "lists of texts."
        )
    path = Path(given).expanduser()
    if not path.exists():
        raise DataError(
            f"There is no file or folder {str(path)[:200]!r} ({option}). Give one that is there; in Python, a text "
            "itself is given as {'a name': ['the text']}."
        )
    return path


def _read(path: Path, kind: str, separator: str | None, *, rows: bool) -> Iterator[Document]:
    if path.is_dir():
        inside = (each for each in sorted(path.rglob("*")) if each.is_file())
        files = [each for each in inside if not any(part.startswith(".") for part in each.relative_to(path).parts)]
        if not files:
            raise DataError(f"The folder {str(path)!r} has no file in it; expected the files of texts.")
        for file in files:
            yield from _read(file, kind, separator, rows=rows)
    elif rows or path.suffix.lower() in _JSONL:
        yield from _rows(path, kind)
    else:
        text = _decoded(path)
        # Nothing lies after a last separator, nor between two that follow each other.
        parts = [text] if separator is None else [part for part in text.split(separator) if part] or [""]
        for number, part in enumerate(parts, start=1):
            yield Document(kind, str(path) if len(parts) == 1 else f"{path}, part {number}", part)


def _decoded(path: Path) -> str:
    """Return the text of a file, its line ends as they are, without a byte order mark."""
    try:
        content = path.read_bytes()
    except OSError as error:
        raise DataError(f"{str(path)!r} cannot be read ({error}).") from error
    if (zero := content.find(0)) >= 0:
        raise DataError(
            f"{str(path)!r} is a binary file: byte {zero} (counted from 0) is 0x00. Give files of text, in UTF-8."
        )
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        # Counted in the file, so with the byte order mark that the decoder has taken away.
        mark = 3 if content.startswith(b"\xef\xbb\xbf") else 0
        bad = error.start + (mark if error.object != content else 0)
        raise DataError(
            f"{str(path)!r} is not UTF-8: byte {bad} (counted from 0) is 0x{content[bad]:02x} ({error.reason}). If it "
            "is text in another encoding, convert it: iconv -f LATIN1 -t UTF-8 OLD > NEW."
        ) from error


def _rows(path: Path, kind: str) -> Iterator[Document]:
    # Not splitlines(), which also ends lines at characters that may stand within a JSON string.
    for number, line in enumerate(_decoded(path).split("\n"), start=1):
        if not line.strip():
            continue
        place = f"{path}, line {number}"
        try:
            row = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise DataError(f"{place}: no JSON ({error}). Expected one object a line: {ROWS}.") from error
        yield _document(row, kind, place)


def _document(row: Any, kind: str, place: str) -> Document:
    """Return a row as a document, or say what is wrong with it."""
    if not isinstance(row, Mapping):
        raise DataError(f"{place}: {_type(row)}; expected an object with {ROWS}.")
    shapes = [shape for shape in _SHAPES if all(key in row for key in shape)]
    if len(shapes) != 1:
        keys = ", ".join(map(str, row)) or "none"
        why = "more than one of what can be scored" if shapes else "nothing that can be scored"
        raise DataError(f"{place}: the keys are {keys}, which is {why}; expected one of {ROWS}.")
    kind = _string(row, "kind", place) if "kind" in row else kind
    if shapes[0] == ("messages",):
        return _chat(row["messages"], kind, place)
    if shapes[0] == ("text",):
        return Document(kind, place, _string(row, "text", place))
    prompt, completion = row["prompt"], row["completion"]
    if isinstance(prompt, list) and isinstance(completion, list):
        return _chat([*prompt, *completion], kind, place)
    return Document(kind, place, _string(row, "completion", place), _string(row, "prompt", place))


def _chat(messages: Any, kind: str, place: str) -> Document:
    if not isinstance(messages, list) or not messages or not all(isinstance(each, Mapping) for each in messages):
        raise DataError(f'{place}: messages is {_type(messages)}; expected a list of {{"role": …, "content": …}}.')
    last = messages[-1]
    if last.get("role") != "assistant":
        raise DataError(
            f"{place}: the last message is of role {last.get('role')!r}; expected 'assistant', whose answer is scored."
        )
    return Document(kind, place, _string(last, "content", place), messages=tuple(messages))


def _string(row: Mapping[str, Any], key: str, place: str) -> str:
    found = row.get(key)
    if not isinstance(found, str):
        raise DataError(f"{place}: {key!r} is {_type(found)}; expected a text.")
    try:
        found.encode()
    except UnicodeEncodeError as error:
        raise DataError(
            f"{place}: {key!r} has half of a character, {found[error.start]!r}, at {error.start}, which no tokenizer "
            "can read. Write the text anew, in UTF-8."
        ) from error
    return found


def _type(given: object) -> str:
    names = {type(None): "null or missing", bool: "true or false", int: "a number", float: "a number", str: "a text"}
    return names.get(type(given), "a list" if isinstance(given, list) else f"of type {type(given).__name__}")


def _without_empty(documents: Sequence[Document], option: str) -> list[Document]:
    """Return the documents with something to score; warn of the others, or refuse if nothing is left of a kind."""
    kept = [each for each in documents if each.text]
    left = {each.kind for each in kept}
    for each in documents:
        if each.kind not in left:
            raise DataError(f"{each.place} is empty, and {each.kind!r} has no other text: there is nothing to score.")
    if not kept:
        raise DataError(f"{option} has no text in it: there is nothing to score.")
    empty = [each.place for each in documents if not each.text]
    if empty:
        warn(f"{len(empty)} of {len(documents)} documents are empty and left out, the first one {empty[0]}.")
    return kept
