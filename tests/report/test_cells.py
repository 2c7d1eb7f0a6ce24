import math

import numpy as np
import pytest

from holdfast.report import Measured, Table
from holdfast.report.cells import is_long, is_numeric, shown, sort_key


@pytest.mark.parametrize(
    ("cell", "text"),
    [
        (None, "–"),
        ("", "–"),
        ("SI-x", "SI-x"),
        (3, "3"),
        (-3, "−3"),
        (123456789, "123456789"),
        (np.int64(123456789), "123456789"),
        (np.float64(0.5), "0.5"),
        (0.123456, "0.1235"),
        (-1.5, "−1.5"),
        (1.25e-7, "1.25×10⁻⁷"),
        (123456.0, "1.235×10⁵"),
        (math.nan, "–"),
        (-math.inf, "−∞"),
        (Measured(97.23, 0.12), "97.2 ± 0.1"),
        (Measured(97.23, 0.034), "97.23 ± 0.03"),
        (Measured(-0.951, 0.0042), "−0.951 ± 0.004"),
        (Measured(45.2, 12.1), "45.2 ± 12.1"),
        (Measured(97.23, 0.034, decimals=1), "97.2 ± 0.0"),
        (Measured(97.0, 0.0), "97.0 ± 0.0"),
        (Measured(97.234, None), "97.23"),
        (Measured(97.234, math.nan), "97.23"),
        (Measured(97.0, None, decimals=1), "97.0"),
        (Measured(math.nan, math.nan), "–"),
        (Measured(math.inf, math.inf), "∞ ± ∞"),
    ],
)
def test_what_a_reader_sees(cell, text):
    assert shown(cell) == text


def test_what_a_column_is_sorted_by():
    assert float(sort_key(Measured(97.23, 0.5))) == 97.23
    assert float(sort_key(-3)) == -3
    assert sort_key("SI") == "SI"
    assert sort_key(None) == sort_key(math.nan) == sort_key(Measured(math.nan)) == ""


def test_a_column_of_numbers_may_have_gaps_but_no_text():
    table = Table("t", "", ("a", "b", "c"), [(1, "x", None), (None, 2, None), (Measured(1.0, 0.1), None, None)])
    assert [is_numeric(table, column) for column in range(3)] == [True, False, False]


def test_a_column_with_a_sentence_in_it_is_long():
    table = Table("t", "", ("a", "b"), [("short", "word " * 20), ("short", "word")])
    assert [is_long(table, column) for column in range(2)] == [False, True]
