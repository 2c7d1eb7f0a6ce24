"""The texts: lessons that a model is to learn, and kinds of text that it knew and is to keep.

All come from Debian packages, downloaded and unpacked without being installed, but for GSM8K's questions and for
records in an invented format. Each text is a list of documents, so that standard errors are over documents.
"""

import hashlib
import json
import struct
import subprocess
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatch
from pathlib import Path
from re import sub
from typing import Any

from anchorhold.whole_files import write_whole
from benchmarks.language import reading
from benchmarks.language.formats.records import invented, records
from studies.pretrained.models import checked

TRAIN_BYTES = 2_000_000
"""Of a lesson's training text, at most."""
LONGEST = 6000
"""Characters of a window."""
PARAGRAPH = 60
"""Characters from which on a paragraph that both training and evaluation have is taken out of training."""
RUN_OF_WORDS = 13
"""Words in a row by which what is left of an overlap is measured."""


@dataclass(frozen=True)
class Package:
    """A Debian package: its file, as apt names it, and the digest of that."""

    name: str
    version: str
    sha256: str


PACKAGES = {
    package.name: package
    for package in (
        Package(
            "libreoffice-help-de",
            "4:7.4.7-1+deb12u14",
            "00490b63c509ac96f7f212d6a6e40452d3e0d1f97ccf4b824dd5ec4c01e8277f",
        ),
        Package(
            "libreoffice-help-eu",
            "4:7.4.7-1+deb12u14",
            "e88eaa5da5d9254a7c9bc1a6ac89d04758380adc044f9a007f666de68ef9aa91",
        ),
        Package("dict-gcide", "0.48.5+nmu2", "7b0af5cfde3cbdef5e9d6e78f92ec335ced7c2790f37a40f49bebc6f7347ac0f"),
        Package("debian-handbook", "11.20220922", "3d5dbeac1f1afc9c094eab9d0f701f6ecff99c4927d5a4794cf6c85678134faa"),
        Package("anarchism", "15.3-3", "cf21c10948b00e923c62eb31c39a3390413fa26c5ee0e3b925feb0ec7fe42948"),
        Package(
            "dasher-data", "5.0.0~beta~repack2-4", "6ab490f6ef1af82a8f6a2e41099953323cd34ecc057b30c4dd85cd50c28a3436"
        ),
        Package("sword-text-web", "426.0-1", "930b23670b352f0829a306501de4bebb5e654a2df02cde2cbe86b802177868e1"),
        Package(
            "libpython3.11-stdlib",
            "3.11.2-6+deb12u8",
            "890b3540dad8a1ccc0deeca025db735bcc82629a76adacbe3b50fcc06ed528ca",
        ),
        Package(
            "lttng-modules-dkms", "2.13.9-1+deb12u1", "385d40aa872c30a76d49d14be564d8043d92e929d56e9172ef22ff2082bb356d"
        ),
        Package(
            "dahdi-dkms",
            "1:2.11.1.0.20170917~dfsg-8.4",
            "8e74d2d44495aa6d68491f5da729819ae048a7bb29f1ba68c436d30d6dfe4a46",
        ),
        Package(
            "openafs-modules-dkms",
            "1.8.9-1+deb12u1",
            "6f511de47d945a81d08cdd5c00468bbe713db81dd98c495a82506d36ff2bc110",
        ),
    )
}
GSM8K = {
    "train": "17f347dc51477c50d4efb83959dbb7c56297aba886e5544ee2aaed3024813465",
    "test": "3730d312f6e3440559ace48831e51066acaca737f6eabec99bccb9e4b3c39d14",
}
GSM8K_SOURCE = "github.com/openai/grade-school-math, commit 3101c7d5072418e28b9008a6636bde82a006892c (MIT licence)"

Documents = Iterator[tuple[str, str]]
"""Documents, each with a name that stays the same."""


@dataclass(frozen=True)
class Document:
    """A document of a text, in one part of it."""

    text: str
    part: str
    name: str
    content: str


@dataclass(frozen=True)
class Text:
    """A text of the study.

    Args:
        documents: yields its documents, given the cache folder.
        about: where it comes from.
        counts: how many documents are for validation and for test.
        is_lesson: whether it is to be learned, or else kept.
        is_whole: whether its documents are taken whole, or else a window of each.
        shortest: how long a document must be: characters of a whole one, bytes of a window.
    """

    documents: Callable[[Path], Documents]
    about: str
    counts: tuple[int, int] = (32, 64)
    is_lesson: bool = False
    is_whole: bool = False
    shortest: int = 1500


def _lesson(documents: Callable[[Path], Documents], about: str) -> Text:
    return Text(documents, about, is_lesson=True, is_whole=True, shortest=400)


def _short(documents: Callable[[Path], Documents], about: str, *, is_lesson: bool) -> Text:
    """Return a text of many short documents."""
    return Text(documents, about, (128, 256), is_lesson=is_lesson, is_whole=True, shortest=40)


def _unpacked(package: str, cache: Path) -> Path:
    """Return the folder of an unpacked package, downloading it if it is not there."""
    about = PACKAGES[package]
    folder = cache / "debian"
    folder.mkdir(parents=True, exist_ok=True)
    pattern = f"{package}_{about.version.replace(':', '%3a')}_*.deb"
    if not list(folder.glob(pattern)):
        subprocess.run(["apt-get", "download", "-qq", f"{package}={about.version}"], cwd=folder, check=True)  # noqa: S603, S607
    archive = checked(next(folder.glob(pattern)), about.sha256)
    unpacked = folder / package
    if not unpacked.is_dir():
        aside = folder / f".{package}"
        subprocess.run(["dpkg-deb", "--extract", str(archive), str(aside)], check=True)  # noqa: S603, S607
        aside.rename(unpacked)
    return unpacked


def _files(package: str, cache: Path, pattern: str) -> Iterator[tuple[str, bytes]]:
    folder = _unpacked(package, cache)
    for path in sorted(folder.rglob("*")):
        name = str(path.relative_to(folder))
        if fnmatch(name, pattern) and path.is_file() and not path.is_symlink():
            yield f"{package}/{name}", path.read_bytes()


def _pages(package: str, pattern: str) -> Callable[[Path], Documents]:
    """Return what yields the pages of a package, as paragraphs."""

    def documents(cache: Path) -> Documents:
        for name, content in _files(package, cache, pattern):
            found = [each for each in reading.paragraphs(content) if len(each) >= 20]
            yield name, "\n\n".join(each for each in found if not each.startswith(("This page is:", "Title is:")))

    return documents


def _english(cache: Path) -> Documents:
    for name, content in _files("anarchism", cache, "*/html/*.html"):
        for text in reading.html(content):
            yield name, text
    for name, content in _files("dasher-data", cache, "*/training_english_GB.txt"):
        for number, text in enumerate(reading.plain(content)):
            yield f"{name}/{number}", text


def _modules(cache: Path) -> Documents:
    for name, content in _files("libpython3.11-stdlib", cache, "usr/lib/python3.11/*.py"):
        if "/encodings/" not in name:
            for text in reading.source_code(content):
                yield name, text


def _c(cache: Path) -> Documents:
    for package in ("lttng-modules-dkms", "dahdi-dkms", "openafs-modules-dkms"):
        for name, content in _files(package, cache, "usr/src/*.c"):
            for text in reading.source_code(content):
                yield name, text


def _scripture(cache: Path) -> Documents:
    """Yield the books of the World English Bible, which lie in zlib's format, one block each."""
    for testament in ("ot", "nt"):
        ((_, index),) = _files("sword-text-web", cache, f"*/{testament}.bzs")
        ((name, blocks),) = _files("sword-text-web", cache, f"*/{testament}.bzz")
        for number, (start, size, _) in enumerate(struct.iter_unpack("<III", index)):
            found = zlib.decompress(blocks[start : start + size]).decode() if size else ""
            found = sub(r"<(note|title)\b.*?</\1>", "", found)
            found = sub(r"<(chapter|div sID|lg sID|l sID)[^>]*>", "\n", found)
            found = sub(r"[ \t]+", " ", sub(r"<[^>]*>", "", found))
            yield f"{name}/{number}", sub(r"\s*\n\s*", "\n", found).strip()


def _dictionary(cache: Path) -> Documents:
    for name, content in _files("dict-gcide", cache, "*.dict.dz"):
        for number, text in enumerate(reading.dictionary(content)):
            yield f"{name}/{number}", text


def _questions(which: str) -> Callable[[Path], Documents]:
    """Return what yields GSM8K's questions with their answers."""

    def documents(cache: Path) -> Documents:
        path = cache / "gsm8k" / f"{which}.jsonl"
        if not path.is_file():
            raise SystemExit(
                f"There is no file {path}. Put grade_school_math/data/{which}.jsonl of {GSM8K_SOURCE} there."
            )
        for number, line in enumerate(checked(path, GSM8K[which]).read_text(encoding="utf-8").splitlines()):
            given = json.loads(line)
            yield f"gsm8k/{which}/{number}", f"Question: {given['question']}\nAnswer: {given['answer']}"

    return documents


def _gsm8k(cache: Path) -> Documents:
    yield from _questions("train")(cache)
    yield from _questions("test")(cache)


def _records(cache: Path) -> Documents:
    """Yield records in an invented format: it and the people are drawn by chance, and stay the same."""
    del cache
    form = invented(0, "pretrained")
    for number, record in enumerate(records(6000, 16, 0, "pretrained")):
        yield f"records/{number}", (form.asked(record) + form.write(record)).strip()


HANDBOOK = "The Debian Administrator's Handbook (GPL-2+ or CC-BY-SA-3.0)"
TEXTS: Mapping[str, Text] = {
    "lesson-german": _lesson(_pages("libreoffice-help-de", "*/de/text/*.html"), "LibreOffice's help, German (MPL-2.0)"),
    "lesson-basque": _lesson(_pages("libreoffice-help-eu", "*/eu/text/*.html"), "LibreOffice's help, Basque (MPL-2.0)"),
    "lesson-dictionary": _lesson(_dictionary, "the dictionary GCIDE, of 1913 and later (GPL-3+)"),
    "lesson-gsm8k": _short(_gsm8k, f"GSM8K: {GSM8K_SOURCE}", is_lesson=True),
    "lesson-records": _short(_records, "records in an invented format, drawn by chance", is_lesson=True),
    "english": Text(_english, "An Anarchist FAQ (GPL-2) and Dasher's English training text (GPL-2+)"),
    "scripture": Text(_scripture, "the World English Bible (public domain), one window of each book", (24, 56)),
    "python": Text(_modules, "modules of Python 3.11's standard library (PSF-2)"),
    "c": Text(_c, "C files of kernel modules: LTTng, DAHDI, OpenAFS (GPL-2, LGPL-2.1, IPL-1.0)"),
    "french": Text(_pages("debian-handbook", "*/html/fr-FR/*.html"), f"{HANDBOOK}, in French", (24, 56)),
    "german": Text(_pages("debian-handbook", "*/html/de-DE/*.html"), f"{HANDBOOK}, in German", (24, 56)),
    "chinese": Text(_pages("debian-handbook", "*/html/zh-CN/*.html"), f"{HANDBOOK}, in simplified Chinese", (24, 56)),
    "math": _short(_questions("test"), f"GSM8K's test questions with answers: {GSM8K_SOURCE}", is_lesson=False),
}
LESSONS = tuple(name for name, text in TEXTS.items() if text.is_lesson)
KEPT = tuple(name for name, text in TEXTS.items() if not text.is_lesson)


def number_of(text: str) -> int:
    """Return a number that has nothing to do with a text but is always the same."""
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big")


def kept_window(text: str) -> str:
    """Return a part of a document that begins between its lines, a third into it."""
    start = text.find("\n", len(text) // 3) + 1
    return text[start : start + LONGEST].strip()


def split(name: str, text: Text, given: Sequence[tuple[str, str]]) -> list[Document]:
    """Return a text's documents by part: validation and test, and of a lesson, train."""
    validation, test = text.counts
    in_order = sorted(given, key=lambda each: number_of(each[0]))
    found: list[Document] = []
    if name == "lesson-gsm8k":  # whose own split stays as it is
        tests = [each for each in in_order if each[0].startswith("gsm8k/test")]
        in_order = [each for each in in_order if not each[0].startswith("gsm8k/test")]
        in_order = tests[:test] + in_order
    for document, content in in_order:
        shown = content if text.is_whole else kept_window(content)
        if (len(shown) if text.is_whole else len(shown.encode())) < text.shortest:
            continue
        counted = len(found)
        part = "test" if counted < test else "validation" if counted < test + validation else "train"
        if part == "train" and not text.is_lesson:
            break
        found.append(Document(name, part, document, shown))
    if len(found) < test + validation:
        raise SystemExit(f"{name}: {len(found)} documents; expected at least {test + validation}.")
    return found


def without_overlap(train: Sequence[Document], known: set[str]) -> list[Document]:
    """Return training documents without the paragraphs that are evaluated on, and none twice."""
    seen = set(known)
    found = []
    for document in train:
        kept = []
        for paragraph in document.content.split("\n\n"):
            if len(paragraph) < PARAGRAPH or paragraph.strip() not in seen:
                kept.append(paragraph)
            seen.add(paragraph.strip())
        content = "\n\n".join(kept)
        if content:
            found.append(Document(document.text, document.part, document.name, content))
    return found


def paragraphs_of(documents: Sequence[Document]) -> set[str]:
    """Return the paragraphs of documents that are long enough to be told apart."""
    return {each.strip() for document in documents for each in document.content.split("\n\n") if len(each) >= PARAGRAPH}


def shared_words(train: Sequence[Document], evaluated: Sequence[Document]) -> float:
    """Return the share of the evaluated runs of 13 words that training has too."""

    def runs(document: Document) -> Iterator[tuple[str, ...]]:
        words = document.content.split()
        return (tuple(words[i : i + RUN_OF_WORDS]) for i in range(len(words) - RUN_OF_WORDS + 1))

    trained = {run for document in train for run in runs(document)}
    asked = [run in trained for document in evaluated for run in runs(document)]
    return sum(asked) / len(asked) if asked else 0.0


def prepare(cache: Path) -> Path:
    """Write all texts into one file of the cache folder and a listing beside it, and return the file's path."""
    found: list[Document] = []
    for name, text in TEXTS.items():
        found += split(name, text, list(text.documents(cache)))
    known = paragraphs_of([document for document in found if document.part != "train"])
    evaluated = [document for document in found if document.part != "train"]
    listing: list[dict[str, Any]] = []
    written = list(evaluated)
    for name, text in TEXTS.items():
        parts = {part: [d for d in evaluated if (d.text, d.part) == (name, part)] for part in ("validation", "test")}
        if text.is_lesson:
            train = without_overlap([d for d in found if (d.text, d.part) == (name, "train")], known)
            parts["train"] = at_most(train, TRAIN_BYTES)
            written += parts["train"]
        counts = {
            part: {"documents": len(some), "bytes": sum(len(d.content.encode()) for d in some)}
            for part, some in parts.items()
        }
        shared = (
            {"words_shared_with_train": round(shared_words(parts["train"], parts["test"]), 5)} if text.is_lesson else {}
        )
        listing.append({"text": name, "about": text.about, **counts, **shared})
        print(json.dumps(listing[-1]), flush=True)
    lines = as_lines(written)
    path = cache / "texts.jsonl"
    write_whole(path, lines)
    about = {"sha256": hashlib.sha256(lines).hexdigest(), "texts": listing}
    write_whole(cache / "texts.json", (json.dumps(about, indent=2, ensure_ascii=False) + "\n").encode())
    print(f"{path}: sha256 {about['sha256']}", flush=True)
    return path


def at_most(documents: Sequence[Document], size: int) -> list[Document]:
    """Return the first documents whose bytes are together at most so many."""
    found, total = [], 0
    for document in documents:
        total += len(document.content.encode())
        if total > size:
            break
        found.append(document)
    return found


def as_lines(documents: Sequence[Document]) -> bytes:
    """Return documents as lines of JSON."""
    return "".join(json.dumps(vars(document), ensure_ascii=False) + "\n" for document in documents).encode()


def read(path: Path) -> list[Document]:
    """Return the documents that :func:`prepare` wrote."""
    # Texts have characters at which splitlines would cut too.
    return [Document(**json.loads(line)) for line in path.read_text(encoding="utf-8").split("\n") if line]
