"""Tables as CSV: full precision, an error in a column of its own, nothing where nothing is known."""

import csv
import io
import math
from collections.abc import Sequence

import numpy as np

from anchorhold_lab.report.elements import Cell, Measured, Table, Verdict


def to_csv(table: Table) -> bytes:
    """Return a table as a CSV file."""
    with_error = [any(isinstance(row[place], Measured) for row in table.rows) for place in range(len(table.columns))]
    file = io.StringIO()
    writer = csv.writer(file, lineterminator="\n")
    writer.writerow(
        name
        for column, error in zip(table.columns, with_error, strict=True)
        for name in ((column, f"{column} error") if error else (column,))
    )
    for row in table.rows:
        writer.writerow(
            text for cell, error in zip(row, with_error, strict=True) for text in _texts(cell, with_error=error)
        )
    return file.getvalue().encode()


def verdicts_table(verdicts: Sequence[Verdict]) -> Table:
    """Return all verdicts as one table, for its CSV file."""
    return Table(
        name="verdicts",
        caption="Every claim and whether it holds.",
        columns=(
            "name",
            "claim",
            "verdict",
            "statistic",
            "threshold",
            "words",
            "note",
            "the authors' data",
            "within it",
        ),
        rows=tuple(
            (
                *(each.name, each.claim, each.answer, each.statistic, each.threshold, each.words, each.note),
                *(each.authors, _WITHIN[each.authors_within]),
            )
            for each in verdicts
        ),
    )


_WITHIN = {True: "yes", False: "no", None: ""}


def _texts(cell: Cell, *, with_error: bool) -> list[str]:
    mean, error = (cell.mean, cell.error) if isinstance(cell, Measured) else (cell, None)
    return [_text(mean), _text(error)] if with_error else [_text(mean)]


def _text(value: str | float | None) -> str:
    if value is None or (isinstance(value, float) and math.isnan(value)):
        return ""
    if isinstance(value, str):
        return value
    # Through Python's own types, because numpy's write their name around the number.
    return repr(int(value) if isinstance(value, int | np.integer) else float(value))
