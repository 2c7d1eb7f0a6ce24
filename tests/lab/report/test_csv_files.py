import csv
import io
import math

import numpy as np

from anchorhold_lab.report import Measured, Table, Verdict
from anchorhold_lab.report.csv_files import to_csv, verdicts_table


def read(table):
    return list(csv.reader(io.StringIO(to_csv(table).decode())))


def test_numbers_keep_every_digit_and_errors_have_their_column():
    rows = [("SI, √", Measured(0.1 + 0.2, 0.1), 7), ('"quoted"\nline', None, math.nan), ("x", Measured(1.0), 1e-300)]
    head, *body = read(Table("t", "", ("name", "accuracy", "n"), rows))
    assert head == ["name", "accuracy", "accuracy error", "n"]
    assert body[0] == ["SI, √", "0.30000000000000004", "0.1", "7"]
    assert body[1] == ['"quoted"\nline', "", "", ""]
    assert body[2] == ["x", "1.0", "", "1e-300"]


def test_numbers_of_numpy_are_numbers():
    cells = (np.float64(0.5), np.int64(60_000), Measured(np.float64(0.25), np.float64(0.125)))
    _, row = read(Table("t", "", ("a", "b", "c"), [cells]))
    assert row == ["0.5", "60000", "0.25", "0.125"]


def test_every_verdict_has_a_row():
    verdicts = [
        Verdict("A1", "One.", "holds", "2", "> 1", words="more", authors="0.5 (a file)", authors_within=False),
        Verdict("A2", "Two.", "not run", "", "> 1", "No runs."),
    ]
    head, first, second = read(verdicts_table(verdicts))
    assert head == [
        "name",
        "claim",
        "verdict",
        "statistic",
        "threshold",
        "words",
        "note",
        "the authors' data",
        "within it",
    ]
    assert first == ["A1", "One.", "holds", "2", "> 1", "more", "", "0.5 (a file)", "no"]
    assert second == ["A2", "Two.", "not run", "", "> 1", "", "No runs.", "", ""]
