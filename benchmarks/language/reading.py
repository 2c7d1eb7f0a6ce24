"""Files of several formats, read as documents of plain text."""

import gzip
import re
import zlib
from html.parser import HTMLParser

PROSE = ("p", "li", "dd", "dt", "blockquote", "h1", "h2", "h3", "h4", "h5", "h6")
NOT_PROSE = ("script", "style", "pre", "nav", "table", "head", "footer", "button")
LARGEST_MODULE = 200_000
UMLAUTS = str.maketrans("äöüÄÖÜß", "aouAOUs")
GERMAN_WORDS = frozenset(
    ("der", "das", "und", "ist", "nicht", "ein", "eine", "mit", "den", "von", "für", "auf", "wird")
)
PIECE = 12_000
"""A book in one file is cut between entries into documents of about this many characters."""


def html(content: bytes) -> list[str]:
    """Return the paragraphs of a page, without menus, tables and listings."""
    return ["\n\n".join(filter(_is_prose, paragraphs(content)))]


def german_html(content: bytes) -> list[str]:
    """Return the German paragraphs of a page, of which a translator has left some in English."""
    return ["\n\n".join(filter(_is_german, paragraphs(content)))]


def dictionary(content: bytes) -> list[str]:
    """Return the entries of a dictd dictionary, their lines joined into paragraphs."""
    text = re.sub(
        r"\[(?:1913 Webster|PJC|WordNet[^\]]*|Webster 1913 Suppl\.)[^\]]*\]", "", _decoded(_unpacked(content))
    )
    text = re.sub(r"[{}]", "", text)  # cross references
    entries = [re.sub(r"\s+", " ", entry).strip() for entry in re.split(r"\n\s*\n", text)]
    return _pieces([entry for entry in entries if _is_prose(entry)])


def fortunes(content: bytes) -> list[str]:
    """Return the sayings of a file, those that are prose."""
    sayings = [re.sub(r"[ \t]+", " ", saying).strip() for saying in re.split(r"\n%\n", _decoded(content))]
    return _pieces([saying for saying in sayings if _is_prose(saying)])


def plain(content: bytes) -> list[str]:
    """Return a text, cut between its lines."""
    return _pieces([line.strip() for line in _decoded(content).splitlines() if _is_prose(line)])


def german_plain(content: bytes) -> list[str]:
    """Return a German text, cut between its lines."""
    return _pieces([line.strip() for line in _decoded(content).splitlines() if _is_german(line)])


def source_code(content: bytes) -> list[str]:
    """Return a program, unless it is too short to be one or so long that it is a table."""
    if not 500 <= len(content) <= LARGEST_MODULE or not content.isascii():
        return []
    return [content.decode()]


class _Paragraphs(HTMLParser):
    """Gathers the text of a page's paragraphs."""

    def __init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self._found = [""]
        self._outside = 0

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag in NOT_PROSE:
            self._outside += 1
        elif tag in PROSE:
            self._found.append("")

    def handle_endtag(self, tag: str) -> None:
        if tag in NOT_PROSE:
            self._outside = max(0, self._outside - 1)
        elif tag in PROSE:
            self._found.append("")

    def handle_data(self, data: str) -> None:
        if not self._outside:
            self._found[-1] += data

    def paragraphs(self) -> list[str]:
        return [re.sub(r"\s+", " ", text).strip() for text in self._found]


def paragraphs(content: bytes) -> list[str]:
    """Return the paragraphs of a page, without menus and listings, as they come."""
    parser = _Paragraphs()
    parser.feed(_decoded(content))
    parser.close()
    return parser.paragraphs()


def _is_german(text: str) -> bool:
    """Whether a paragraph is prose, but for its umlauts, with some of the words that hardly a German sentence lacks."""
    return _is_prose(text.translate(UMLAUTS)) and not GERMAN_WORDS.isdisjoint(text.lower().split())


def _is_prose(text: str) -> bool:
    """Whether a paragraph is long enough, and mostly letters."""
    letters = sum(character.isalpha() or character.isspace() for character in text)
    return len(text) >= 40 and letters >= 0.85 * len(text) and text.isascii()


def _pieces(entries: list[str]) -> list[str]:
    documents: list[list[str]] = [[]]
    size = 0
    for entry in entries:
        if size > PIECE:
            documents.append([])
            size = 0
        documents[-1].append(entry)
        size += len(entry)
    return ["\n\n".join(document) for document in documents]


def _decoded(content: bytes) -> str:
    text = content.decode("utf-8", errors="replace")
    return text.translate({0x2018: "'", 0x2019: "'", 0x201C: '"', 0x201D: '"', 0x2013: "-", 0x2014: "-", 0xA0: " "})


def _unpacked(content: bytes) -> bytes:
    try:
        return gzip.decompress(content)
    except (OSError, zlib.error):  # not packed
        return content
