"""The corpus: English, Python and other text as bytes, made from Debian packages, packed into one file."""

import hashlib
import json
import subprocess
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatch
from pathlib import Path
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from anchorhold.whole_files import whole_file, write_whole
from benchmarks.language.sources import ENGLISH, NOT_PYTHON, PYTHON, Source

LANGUAGES = ("english", "python")
"""Those of most studies."""
PARTS = ("train", "validation")
BETWEEN = b"\n\n\n"
LENGTHS = "lengths"
"""Under which name a file of tokens has their lengths."""


@dataclass(frozen=True)
class Corpus:
    """Bytes of each language, to train on and to measure on."""

    texts: dict[tuple[str, str], Tensor]
    lengths: Tensor | None = None
    """How many bytes each kind of token stands for, where the text is no longer bytes but tokens."""

    def of(self, language: str, part: str) -> Tensor:
        """Return a language's text, as bytes or tokens."""
        if (language, part) not in self.texts:
            raise SystemExit(
                f"The corpus has no {language}. One with English, Python, German and C is made by: "
                "python -m benchmarks.language prepare --sequence CORPUS"
            )
        return self.texts[language, part]

    def digest(self) -> str:
        """Return a name for exactly this text."""
        content = hashlib.sha256()
        for key in sorted(self.texts):
            content.update(self.texts[key].cpu().numpy().tobytes())
        if self.lengths is not None:
            content.update(self.lengths.cpu().numpy().tobytes())
        return content.hexdigest()

    @property
    def vocabulary(self) -> int:
        """How many kinds of tokens there are."""
        return 256 if self.lengths is None else len(self.lengths)

    def to(self, device: torch.device) -> "Corpus":
        """Return the corpus in a device's memory."""
        lengths = None if self.lengths is None else self.lengths.to(device)
        return Corpus({key: text.to(device) for key, text in self.texts.items()}, lengths)


class ReadACorpus(Protocol):
    """What was found by networks that read one."""

    @property
    def corpus(self) -> str:
        """Its sha256."""


def corpora(found: Iterable[ReadACorpus]) -> str:
    """Say what networks have read: the packages that text is made from have new versions now and then."""
    return "; ".join(f"sha256 {each}" for each in dict.fromkeys(each.corpus for each in found))


def load(path: Path) -> Corpus:
    """Read a corpus that :func:`write` wrote."""
    if not path.is_file():
        raise SystemExit(f"There is no corpus at {path}. Make it with: python -m benchmarks.language prepare {path}")
    with np.load(path) as file:
        tensors = {name: torch.from_numpy(_signed(file[name])) for name in file.files}
    lengths = tensors.pop(LENGTHS, None)
    return Corpus({tuple(name.rsplit("_", 1)): tensor for name, tensor in tensors.items()}, lengths)


def write(path: Path, corpus: Corpus) -> None:
    """Write a corpus, compressed."""
    path.parent.mkdir(parents=True, exist_ok=True)
    arrays = {"_".join(key): text.numpy() for key, text in corpus.texts.items()}
    if corpus.lengths is not None:
        narrow = np.uint16 if corpus.vocabulary <= 2**16 else np.int32
        arrays = {name: array.astype(narrow) for name, array in arrays.items()} | {LENGTHS: corpus.lengths.numpy()}
    with whole_file(path) as file:
        np.savez_compressed(file, **arrays)  # type: ignore[arg-type]  # numpy has a flag among the names


def _signed(array: np.ndarray) -> np.ndarray:
    """Return tokens in a type that all of torch knows; bytes are as they are."""
    return array.astype(np.int32) if array.dtype == np.uint16 else array


def prepare(path: Path, packages: Path, kinds: Mapping[str, Sequence[Source]] | None = None) -> None:
    """Make a corpus and, beside it, a listing of where each part comes from.

    Args:
        path: the file to write.
        packages: a folder for the packages, which are downloaded by apt unless they are there.
        kinds: the sources of each language; English and Python unless others are given.
    """
    kinds = {"english": ENGLISH, "python": PYTHON} if kinds is None else kinds
    texts: dict[tuple[str, str], list[bytes]] = {(a, b): [] for a in kinds for b in PARTS}
    listing = []
    seen: set[bytes] = set()
    for language, sources in kinds.items():
        for source in sources:
            package = _fetched(source.package, packages)
            documents = [(name, _without_repetitions(text, seen)) for name, text in _documents(source, package)]
            taken = _some(documents, source.at_most)
            for name, text in taken:
                texts[language, part_of(name, source.kept_apart)].append(text.encode())
            _, version, _ = package.name.split("_")
            size = sum(len(text) for _, text in taken)
            entry = {"language": language, "package": source.package, "version": version.replace("%3a", ":")}
            listing.append({**entry, "documents": len(taken), "bytes": size})
            print(f"{language:8} {source.package:28} {listing[-1]['version']:22} {size / 1e6:6.2f} MB", flush=True)
    corpus = Corpus({key: torch.from_numpy(_joined(found)) for key, found in texts.items()})
    write(path, corpus)
    sizes = {"_".join(key): len(text) for key, text in corpus.texts.items()}
    document = {"sha256": corpus.digest(), "bytes": sizes, "sources": listing}
    write_whole(path.with_suffix(".json"), (json.dumps(document, indent=2) + "\n").encode())
    print(f"sha256 of the text {document['sha256']}, bytes {sizes}; {path}: {path.stat().st_size / 2**20:.1f} MiB")


def part_of(document: str, one_in: int) -> str:
    """Return whether a document is for training or, as one in so many, for validation: the same for the same name."""
    return PARTS[_hash(document) % one_in == 0]


def _fetched(package: str, folder: Path) -> Path:
    """Return a package's file, downloading it if it is not there."""
    folder.mkdir(parents=True, exist_ok=True)
    if not list(folder.glob(f"{package}_*.deb")):
        subprocess.run(["apt-get", "download", "-qq", package], cwd=folder, check=True)
    return max(folder.glob(f"{package}_*.deb"))


def _documents(source: Source, package: Path) -> Iterator[tuple[str, str]]:
    """Yield the documents of a source, by names that stay the same."""
    unpacked = package.with_suffix("")
    if not unpacked.is_dir():
        subprocess.run(["dpkg-deb", "--extract", package, unpacked], check=True)
    for path in sorted(unpacked.rglob("*")):
        name = str(path.relative_to(unpacked))
        wanted = any(fnmatch(name, pattern) for pattern in source.files)
        if not wanted or path.is_symlink() or not path.is_file() or any(fnmatch(name, p) for p in NOT_PYTHON):
            continue
        for number, text in enumerate(source.read(path.read_bytes())):
            yield f"{source.package}/{name}/{number}", text


def _without_repetitions(text: str, seen: set[bytes]) -> str:
    """Return a text without the paragraphs that some document before had: licences, headers, whole copies."""
    kept = []
    for paragraph in text.split("\n\n"):
        known = hashlib.sha256(paragraph.strip().encode()).digest()[:12]
        if len(paragraph) < 60 or known not in seen:
            kept.append(paragraph)
        seen.add(known)
    return "\n\n".join(kept)


def _some(documents: Iterable[tuple[str, str]], at_most: int) -> list[tuple[str, str]]:
    """Return as many documents as fit, in an order that has nothing to do with what they are about."""
    taken, size = [], 0
    for name, text in sorted(documents, key=lambda document: _hash(document[0] + "?")):
        if len(text) >= 200 and size + len(text) <= at_most:
            taken.append((name, text))
            size += len(text)
    return taken


def _joined(documents: list[bytes]) -> np.ndarray:
    # Packages follow each other in training as they do here, but windows are drawn from anywhere.
    return np.frombuffer(BETWEEN.join(documents), dtype=np.uint8).copy()


def _hash(text: str) -> int:
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big")
