"""Tables of any length, in which nothing is ever cut off.

For tables of a few lines there is rich; it takes ten seconds over twenty thousand.
"""

import functools
import textwrap
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import zip_longest

from rich.cells import cell_len
from rich.console import Console

_GAP = 2
_NARROWEST = 8
"""What a column that may be broken is left with at least."""


@dataclass(frozen=True)
class Column:
    """A column's heading, and how it is set."""

    name: str
    right: bool = False
    breaks: bool = False
    """Whether its cells may go on in the next line."""


@dataclass(frozen=True)
class Line:
    """One row of a table."""

    cells: Sequence[str]
    style: str = ""
    below: str = ""
    """What else there is to say, beside the cells where there is room and beneath them where there is not."""


@dataclass
class PlainTable:
    """Columns and lines, with a title."""

    columns: Sequence[Column]
    lines: Sequence[Line]
    title: str = ""
    below: str = ""
    """The heading of what lines have below."""

    def natural_width(self) -> int:
        """Return how wide the table is if nothing in it is broken, without what is below its lines."""
        return sum(self._natural()) + _GAP * (len(self.columns) - 1)

    def print(self, console: Console) -> None:
        """Print it to fit a console's width, as far as columns that may not be broken allow."""
        width = console.width
        widths = self._widths(width)
        if self.title:
            console.out(self.title, style="bold", highlight=False)
        beside = sum(widths) + _GAP * len(widths)
        heading = self.below if width - beside >= len(self.below) + _NARROWEST else ""
        names = Line([column.name for column in self.columns], below=heading)
        console.out("\n".join(self._set(names, widths, width)), style="bold", highlight=False)
        plain: list[str] = []
        for line in self.lines:
            text = self._set(line, widths, width)
            if not line.style:
                plain += text
                continue
            _write(plain, console)
            plain = []
            console.out("\n".join(text), style=line.style, highlight=False)
        _write(plain, console)

    def _natural(self) -> list[int]:
        cells = zip(*(line.cells for line in self.lines), strict=True) if self.lines else [()] * len(self.columns)
        return [max(map(_width, (column.name, *found))) for column, found in zip(self.columns, cells, strict=True)]

    def _widths(self, most: int) -> list[int]:
        """Return the columns' widths: those that may be broken give way, the widest first."""
        widths = self._natural()
        excess = sum(widths) + _GAP * (len(widths) - 1) - most
        breaking = [number for number, column in enumerate(self.columns) if column.breaks]
        while excess > 0 and breaking:
            widest = max(breaking, key=lambda number: widths[number])
            if widths[widest] <= _NARROWEST:
                break
            widths[widest] -= 1
            excess -= 1
        return widths

    def _set(self, line: Line, widths: Sequence[int], most: int) -> list[str]:
        """Return a line as text, which may be several."""
        broken = [
            [cell] if len(cell) <= width and cell.isascii() else _broken(cell, width)
            for cell, width in zip(line.cells, widths, strict=True)
        ]
        text = []
        for parts in zip_longest(*broken, fillvalue=""):
            padded = [
                " " * (width - _width(part)) + part if column.right else part + " " * (width - _width(part))
                for part, width, column in zip(parts, widths, self.columns, strict=True)
            ]
            text.append((" " * _GAP).join(padded))
        if line.below:
            if sum(widths) + _GAP * len(widths) + _width(line.below) <= most:
                text[0] += " " * _GAP + line.below
            else:
                indent = min(widths[0] + _GAP, max(0, most - 20))
                text += [" " * indent + part for part in _broken(line.below, most - indent)]
        return [part.rstrip() for part in text]


def _write(lines: list[str], console: Console) -> None:
    if lines:
        console.file.write("\n".join(lines) + "\n")


@functools.lru_cache(maxsize=4096)  # of many runs, most have much in common
def _broken(text: str, width: int) -> list[str]:
    if _width(text) <= width:
        return [text]
    letters = max(1, width if _width(text) == len(text) else width // 2)  # of those that are two columns wide
    within = max(map(len, text.split()), default=0) > letters
    return textwrap.wrap(text, letters, break_on_hyphens=within) or [""]


def _width(text: str) -> int:
    return len(text) if text.isascii() else cell_len(text)
