"""A report on disk: the page, and beside it every figure and every table for other uses."""

import os
from pathlib import Path

from holdfast.files import write_whole
from holdfast.report.csv_files import to_csv, verdicts_table
from holdfast.report.model import Report
from holdfast.report.page import to_html
from holdfast.report.pictures import render


def write_report(report: Report, folder: str | os.PathLike[str]) -> Path:
    """Write a report into a folder and return its page, ``index.html``.

    The page needs nothing else to be read. Beside it lie ``figures/NAME.png``, ``.pdf`` and ``.svg``, and the numbers
    in ``data/NAME.csv``, to which it links. The same report gives the same files, byte for byte.
    """
    root = Path(folder)
    figures, data = root / "figures", root / "data"
    figures.mkdir(parents=True, exist_ok=True)
    data.mkdir(exist_ok=True)
    pictures = {figure.name: render(figure) for figure in report.figures()}
    for name, drawn in pictures.items():
        for kind, content in drawn.files.items():
            write_whole(figures / f"{name}.{kind}", content)
    tables = [*report.tables(), *([verdicts_table(report.verdicts())] if report.verdicts() else [])]
    for table in tables:
        write_whole(data / f"{table.name}.csv", to_csv(table))
    # Last, so that whatever the page links to is there.
    index = root / "index.html"
    write_whole(index, to_html(report, pictures).encode())
    return index
