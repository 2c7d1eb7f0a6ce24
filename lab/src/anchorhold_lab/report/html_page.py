"""A report as one page of HTML that asks the network for nothing."""

import base64
import hashlib
import re
from collections.abc import Mapping, Sequence
from importlib.resources import files
from itertools import groupby
from typing import NamedTuple

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from anchorhold_lab.report.cells import is_long, is_numeric, is_unbroken, shown, sort_key
from anchorhold_lab.report.elements import Answer, Figure, Item, Report, Table, Verdict
from anchorhold_lab.report.pictures import Pictures


class _Shown(NamedTuple):
    """How a verdict is shown: its class in the style sheet, and the words for one claim and for many."""

    kind: str
    one: str
    many: str


_SHOWN: dict[Answer, _Shown] = {
    "holds": _Shown("holds", "Holds", "hold"),
    "does not hold": _Shown("fails", "Does not hold", "do not hold"),
    "undecided": _Shown("open", "Undecided", "undecided"),
    "not run": _Shown("missing", "Not run", "not run"),
}

# In inches: the widest figure that can be read on a phone without scrolling, and on a page of text.
_PHONE, _PAGE = 3.6, 8.0


def to_html(report: Report, pictures: Mapping[str, Pictures]) -> str:
    """Return the whole page: text, tables, figures, style and script in one."""
    style, script = _template("report.css"), _template("report.js")
    template = _environment().get_template("report.html")
    return template.render(
        report=report,
        pictures=pictures,
        style=Markup(style),  # noqa: S704 (ours, not data)
        script=Markup(script),  # noqa: S704
        policy=_policy(style, script),
        tally=_tally(report.verdicts()),
    )


def _environment() -> Environment:
    environment = Environment(
        loader=PackageLoader("anchorhold_lab.report"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    environment.filters.update(
        shown=shown,
        sort_key=sort_key,
        data_address=_data_address,
        grouped=_grouped,
        column_classes=_column_classes,
        breadth=_breadth,
        answer=_SHOWN.get,
        anchor=_anchor,
    )
    return environment


def _template(name: str) -> str:
    return files("anchorhold_lab.report").joinpath("templates", name).read_text(encoding="utf-8")


def _policy(style: str, script: str) -> str:
    """Return what a browser may load: pictures inside the page, this style, this script, and nothing else."""
    return f"default-src 'none'; img-src data:; style-src {_hash(style)}; script-src {_hash(script)}"


def _hash(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"


def _data_address(svg: bytes) -> str:
    return f"data:image/svg+xml;base64,{base64.b64encode(svg).decode()}"


def _grouped(items: Sequence[Item]) -> list[tuple[str, list[Item]]]:
    """Return the items with those of one kind that follow each other together: verdicts make one list."""
    return [(kind, list(group)) for kind, group in groupby(items, lambda item: type(item).__name__.lower())]


def _breadth(figure: Figure) -> str:
    """Return how much room a figure needs, so that its text stays readable."""
    return "narrow" if figure.size[0] <= _PHONE else "wide" if figure.size[0] <= _PAGE else "broad"


def _column_classes(table: Table) -> list[str]:
    """Return for each column whether it holds numbers, or text so long that it has to wrap, within words even."""
    return [_column_class(table, place) for place in range(len(table.columns))]


def _column_class(table: Table, place: int) -> str:
    if is_numeric(table, place):
        return "number"
    if is_long(table, place):
        return "long"
    return "unbroken" if is_unbroken(table, place) else ""


def _anchor(title: str) -> str:
    """Return a section's address on the page, which stays whatever other sections there are."""
    return "-".join(re.findall(r"\w+", title.lower()))


def _tally(verdicts: Sequence[Verdict]) -> list[tuple[str, str, list[Verdict]]]:
    """Return the claims by their verdicts, leaving out what there is none of; ours last."""
    found = [
        (shown.kind, shown.many + " (of our own)" * own, [v for v in verdicts if (v.own, v.answer) == (own, answer)])
        for own in (False, True)
        for answer, shown in _SHOWN.items()
    ]
    return [(kind, words, claims) for kind, words, claims in found if claims]
