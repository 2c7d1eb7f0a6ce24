"""A report on disk: the page, and beside it every figure and every table for other uses."""

import os
import re
from collections.abc import Mapping
from pathlib import Path

from anchorhold.whole_files import write_whole
from anchorhold_lab.report.csv_files import to_csv, verdicts_table
from anchorhold_lab.report.elements import Report
from anchorhold_lab.report.html_page import to_html
from anchorhold_lab.report.pictures import render

_LINK = re.compile(r'href="((?:figures|data)/[^"/\\]+\.(?:csv|png|pdf|svg))"')


def write_report(report: Report, folder: str | os.PathLike[str], beside: Mapping[str, bytes] | None = None) -> Path:
    """Write a report into a folder and return its page, ``index.html``.

    The page needs nothing else to be read. Beside it lie ``figures/NAME.png``, ``.pdf`` and ``.svg``, and the numbers
    in ``data/NAME.csv``, to which it links, and files of one's own, ``beside`` it by their names. The same report gives
    the same files, byte for byte. Of a report that was there before, what this one no longer has is removed.
    """
    root = Path(folder)
    # All is made before the first file is written: drawing takes its time, and who stops it keeps the report before.
    pictures = {figure.name: render(figure) for figure in report.figures()}
    files = dict(beside or {})
    for name, drawn in pictures.items():
        files |= {f"figures/{name}.{kind}": content for kind, content in drawn.files.items()}
    tables = [*report.tables(), *([verdicts_table(report.verdicts())] if report.verdicts() else [])]
    files |= {f"data/{table.name}.csv": to_csv(table) for table in tables}
    files["index.html"] = to_html(report, pictures).encode()  # last, so that whatever it links to is there
    before = _linked_from(root / "index.html")
    for made in ("figures", "data"):
        (root / made).mkdir(parents=True, exist_ok=True)
    for path, content in files.items():
        write_whole(root / path, content)
    for path in before - files.keys():
        (root / path).unlink(missing_ok=True)
    return root / "index.html"


def _linked_from(page: Path) -> set[str]:
    """Return the figures and tables that an earlier report's page links to."""
    try:
        return set(_LINK.findall(page.read_text(encoding="utf-8")))
    except (FileNotFoundError, UnicodeDecodeError):
        return set()
