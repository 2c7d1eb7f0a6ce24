"""What a report is made of: plain values that say what to show, and nothing about how it looks."""

import re
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Literal

from matplotlib.figure import Figure as Canvas

from anchorhold.errors import ConfigurationError


@dataclass(frozen=True)
class Measured:
    """A mean with its standard error, shown as ``97.2 ± 0.1``; without an error, as the mean alone.

    The error decides how many decimals are shown, unless ``decimals`` does; with 0 of them, a mean of 88 is ``88``.
    """

    mean: float
    error: float | None = None
    decimals: int | None = None

    def __post_init__(self) -> None:
        if self.decimals is not None and self.decimals < 0:
            raise ConfigurationError(f"A number cannot be shown with {self.decimals} decimals; give 0 or more.")


Cell = str | int | float | Measured | None
"""What stands in a table. Text that is a bound, such as ``<95`` or ``≈0.9``, counts as a number among numbers."""


@dataclass(frozen=True)
class Text:
    """Plain paragraphs, with an empty line between them."""

    text: str

    @property
    def paragraphs(self) -> list[str]:
        """Return the paragraphs, each on one line."""
        return [" ".join(part.split()) for part in re.split(r"\n\s*\n", self.text) if part.strip()]


@dataclass(frozen=True)
class Table:
    """Rows of cells under named columns; ``name`` is that of its CSV file."""

    name: str
    caption: str
    columns: tuple[str, ...]
    rows: tuple[tuple[Cell, ...], ...]

    def __post_init__(self) -> None:
        _check_name("table", self.name)
        # Lists are as good as tuples to write a table down with.
        object.__setattr__(self, "columns", tuple(self.columns))
        object.__setattr__(self, "rows", tuple(tuple(row) for row in self.rows))
        for column, times in Counter(self.columns).items():
            if times > 1:
                raise ConfigurationError(
                    f"Table {self.name!r} has {times} columns called {column!r}; give each its own."
                )
        for number, row in enumerate(self.rows):
            if len(row) != len(self.columns):
                raise ConfigurationError(
                    f"Row {number} of table {self.name!r} has {len(row)} cells for {len(self.columns)} columns: {row!r}"
                )


@dataclass(frozen=True)
class Figure:
    """A picture, given by the function that draws it.

    Args:
        name: That of its files.
        caption: What stands below it.
        draw: Draws on an empty canvas. It is called once for each colour scheme, so it leaves colours to the style and
            to :func:`~anchorhold_lab.report.colour`; where matplotlib would use black, as for the error bars of a bar
            chart, it takes :func:`~anchorhold_lab.report.ink`.
        data: The numbers that it shows, for its CSV file.
        alt: What it shows, for those who can't see it; the caption, if nothing is given.
        size: Width and height in inches. Up to 3.6 fits on a phone, up to 8 on a page of text; what is wider than the
            window scrolls in a box of its own.
    """

    name: str
    caption: str
    draw: Callable[[Canvas], None]
    data: Table | None = None
    alt: str = ""
    size: tuple[float, float] = (7.0, 3.2)

    def __post_init__(self) -> None:
        _check_name("figure", self.name)


Answer = Literal["holds", "does not hold", "undecided", "not run"]
"""What can be said of a claim: what runs decide, what they leave undecided, and what has not been run."""


@dataclass(frozen=True)
class Verdict:
    """Whether a claim holds, by which statistic, against which threshold."""

    name: str
    claim: str
    answer: Answer
    statistic: str
    threshold: str
    note: str = ""
    own: bool = False
    """Whether the claim is of those who report, and not of the work that the report is on; it is counted apart."""
    words: str = ""
    """The words of that work which the threshold is taken from."""
    authors: str = ""
    """What the data of those who made the claim say, where they are known apart from what was written about them."""
    authors_within: bool | None = None
    """Whether their number keeps the threshold; one number without an interval decides nothing."""

    def __post_init__(self) -> None:
        if self.answer in ("undecided", "not run") and not self.note:
            raise ConfigurationError(f"Verdict {self.name!r} is {self.answer}: say why in its note.")


Item = Text | Table | Figure | Verdict


@dataclass(frozen=True)
class Section:
    """Some items under one title."""

    title: str
    items: tuple[Item, ...]


@dataclass(frozen=True)
class Report:
    """A whole report: a lead, sections, and at the end where everything comes from.

    Args:
        title: What stands above everything.
        lead: What to know before anything else.
        sections: The report itself.
        provenance: Where it comes from, as a table.
        files: What else lies beside the page, to link to: pairs of a path from the page's folder and what the file
            holds. The report names these files and leaves it to whoever made it to write them.
    """

    title: str
    lead: Text
    sections: tuple[Section, ...]
    provenance: Table
    files: tuple[tuple[str, str], ...] = ()

    def __post_init__(self) -> None:
        object.__setattr__(self, "files", tuple((path, holds) for path, holds in self.files))
        for path, _ in self.files:
            _check_beside(path)
        for kind, names in (
            ("figures", [figure.name for figure in self.figures()]),
            ("tables", [*(table.name for table in self.tables()), *(["verdicts"] if self.verdicts() else [])]),
        ):
            for name, times in Counter(names).items():
                if times > 1:
                    raise ConfigurationError(
                        f"{times} {kind} of the report are called {name!r} and would share a file; give each its own."
                    )

    def figures(self) -> Iterator[Figure]:
        """Go through the figures, in their order."""
        return (item for section in self.sections for item in section.items if isinstance(item, Figure))

    def verdicts(self) -> list[Verdict]:
        """Return the verdicts, in their order."""
        return [item for section in self.sections for item in section.items if isinstance(item, Verdict)]

    def tables(self) -> Iterator[Table]:
        """Go through all that has a CSV file: the tables, the figures' data and the provenance."""
        for section in self.sections:
            for item in section.items:
                if isinstance(item, Table):
                    yield item
                elif isinstance(item, Figure) and item.data is not None:
                    yield item.data
        yield self.provenance


def _check_name(kind: str, name: str) -> None:
    if not re.fullmatch(r"[a-z0-9][a-z0-9_-]*", name):
        raise ConfigurationError(
            f"A {kind} is called {name!r}; its files take that name, so use small letters, digits, '-' and '_'."
        )


def _check_beside(path: str) -> None:
    if not path or ":" in path or "\\" in path or any(part in ("", ".", "..") for part in path.split("/")):
        raise ConfigurationError(
            f"The report is to link to {path!r}; give a path below the page's own folder, such as 'runs.csv'."
        )
