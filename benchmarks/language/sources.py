"""Which Debian packages the text comes from, and which of their files."""

from collections.abc import Callable
from dataclasses import dataclass, replace

from benchmarks.language import reading


@dataclass(frozen=True)
class Source:
    """Some files of a package.

    Args:
        package: its name in Debian.
        files: glob patterns of the files to read, matched against whole paths in the package.
        read: returns the documents of a file, given its bytes.
        at_most: bytes to take, so that no one package is most of the corpus.
        kept_apart: one document in so many is for validation.
    """

    package: str
    files: tuple[str, ...]
    read: Callable[[bytes], list[str]]
    at_most: int = 6_000_000
    kept_apart: int = 40


def _pages(package: str, *files: str) -> Source:
    return Source(package, files or (f"usr/share/doc/{package}/*.html",), reading.html)


def _modules(package: str, *files: str) -> Source:
    return Source(package, files or ("usr/lib/python3/dist-packages/*.py",), reading.source_code, at_most=3_000_000)


def _german(package: str, files: str) -> Source:
    return Source(package, (files,), reading.german_html, at_most=2_500_000, kept_apart=10)


def _c(package: str) -> Source:
    return Source(package, ("usr/src/*.c",), reading.source_code, at_most=2_000_000, kept_apart=10)


SAYINGS: tuple[str, ...]
SAYINGS = ("computers", "cookie", "definitions", "humorists", "knghtbrd", "literature", "miscellaneous", "people")
SAYINGS += ("politics", "science", "songs-poems", "wisdom", "work")


ENGLISH = (
    Source("dict-gcide", ("*.dict.dz",), reading.dictionary, at_most=14_000_000),
    Source("dict-foldoc", ("*.dict.dz",), reading.dictionary),
    Source("dict-jargon", ("*.dict.dz",), reading.dictionary),
    Source("dict-devil", ("*.dict.dz",), reading.dictionary),
    Source("fortunes", tuple(f"usr/share/games/fortunes/{name}" for name in SAYINGS), reading.fortunes),
    Source("dasher-data", ("*/training_english_GB.txt",), reading.plain),
    _pages("anarchism"),
    _pages("debian-handbook", "*/html/en-US/*.html"),
    _pages("debian-reference-en", "*.en.html"),
    _pages("debian-policy"),
    _pages("debian-faq", "*.en.html"),
    _pages("debian-history", "*.en.html"),
    _pages("developers-reference", "*.html"),
    _pages("harden-doc", "*/html/en-US/*.html"),
    _pages("aptitude-doc-en", "*.html"),
    _pages("installation-guide-amd64", "*/en/*.html"),
    _pages("libreoffice-help-en-us", "*/en-US/*.html"),
    _pages("gimp-help-en", "*.html"),
    _pages("apache2-doc", "*/en/*.html"),
    _pages("postgresql-doc-15", "*.html"),
    _pages("linux-doc-6.1", "*.html"),
    _pages("exim4-doc-html", "*.html"),
    _pages("postfix-doc", "*.html"),
)

PYTHON = (
    _modules("libpython3.11-stdlib", "usr/lib/python3.11/*.py"),
    _modules("python3-django"),
    _modules("python3-sympy"),
    _modules("python3-numpy"),
    _modules("python3-scipy"),
    _modules("python3-pandas"),
    _modules("python3-sklearn"),
    _modules("python3-matplotlib"),
    _modules("python3-sqlalchemy"),
    _modules("python3-twisted"),
    _modules("python3-networkx"),
    _modules("python3-docutils"),
    _modules("python3-sphinx"),
    _modules("python3-nltk"),
    _modules("mercurial-common"),
)

NOT_PYTHON = ("*/test/*", "*/tests/*", "*/test_*.py", "*/conftest.py", "*/_vendor/*", "*/encodings/*")
"""Paths that are left out: tests say the same thing many times, and encodings are tables."""

GERMAN = (
    _german("debian-handbook", "*/html/de-DE/*.html"),
    _german("installation-guide-amd64", "*/de/*.html"),
    _german("debian-reference-de", "*.de.html"),
    _german("libreoffice-help-de", "*/de/*.html"),
    _german("gimp-help-de", "*/de/*.html"),
    Source("dasher-data", ("*/training_german_DE.txt",), reading.german_plain, kept_apart=10),
)

C = tuple(
    map(
        _c,
        (
            "openafs-modules-dkms",
            "dahdi-dkms",
            "lttng-modules-dkms",
            "apfs-dkms",
            "jool-dkms",
            "falcosecurity-scap-dkms",
        ),
    )
)

SEQUENCE = {
    "english": ENGLISH,
    "python": tuple(replace(source, at_most=450_000, kept_apart=10) for source in PYTHON),
    "german": GERMAN,
    "c": C,
}
"""One kind of text after another: English as it is elsewhere, so that the same networks know it, and less of the
others, of which a lesson sees four million bytes."""
