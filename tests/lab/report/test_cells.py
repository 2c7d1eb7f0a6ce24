import math

import numpy as np
import pytest

from anchorhold_lab.report import Measured, Table
from anchorhold_lab.report.cells import is_long, is_numeric, is_unbroken, shown, sort_key


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
        (Measured(88.0, decimals=0), "88"),
        (Measured(88.4, 2.6, decimals=0), "88 ± 3"),
        (Measured(math.nan, math.nan), "–"),
        (Measured(math.nan, decimals=2), "–"),
        (Measured(math.nan, 0.1, decimals=2), "–"),
        (Measured(-math.inf, decimals=2), "−∞"),
        (Measured(-0.04, decimals=1), "0.0"),
        (Measured(-0.04, 0.2), "0.0 ± 0.2"),
        (Measured(-0.4, decimals=0), "0"),
        (Measured(-0.05, decimals=2), "−0.05"),
        (-0.0, "0"),
        ("<95", "<95"),
        (Measured(math.inf, math.inf), "∞ ± ∞"),
    ],
)
def test_what_a_reader_sees(cell, text):
    assert shown(cell) == text


def test_what_a_column_is_sorted_by():
    assert float(sort_key(Measured(97.23, 0.5))) == 97.23
    assert float(sort_key(-3)) == -3
    assert sort_key("SI") == "SI"
    assert [sort_key(math.inf), sort_key(-math.inf)] == ["Infinity", "-Infinity"]
    assert sort_key(None) == sort_key("") == sort_key(math.nan) == sort_key(Measured(math.nan)) == ""


@pytest.mark.parametrize(
    ("text", "number"),
    [("<95", 95), ("≈0.9", 0.9), ("> 0.4", 0.4), ("≤−1.5", -1.5), ("97.3 ± 0.1", 97.3), ("≈0.9 ± 0.1", 0.9)],
)
def test_a_bound_is_a_number_that_happens_to_be_text(text, number):
    table = Table("t", "", ("a",), [(96.5,), (text,), (None,)])
    assert is_numeric(table, 0)
    assert float(sort_key(text)) == number


@pytest.mark.parametrize("text", ["x", "95", "2.13.0+cpu", "< x", "<95 %", "<95, roughly", "0123e45", "1.2.3 ± 1"])
def test_other_text_is_text(text):
    table = Table("t", "", ("a",), [(96.5,), (text,)])
    assert not is_numeric(table, 0)
    assert sort_key(text) == text


def test_a_column_of_numbers_may_have_gaps_but_no_text():
    rows = [(1, "x", None, ""), (None, 2, None, None), (Measured(1.0, 0.1), None, math.nan, None)]
    table = Table("t", "", ("a", "b", "c", "d"), rows)
    assert [is_numeric(table, column) for column in range(4)] == [True, False, True, True]
    assert not is_numeric(Table("t", "", ("a",), ()), 0)


def test_a_column_with_a_sentence_in_it_is_long():
    table = Table("t", "", ("a", "b"), [("short", "word " * 20), ("short", "word")])
    assert [is_long(table, column) for column in range(2)] == [False, True]


def test_a_column_with_a_hash_in_it_may_be_broken():
    table = Table("t", "", ("a", "b"), [("many short words, and then more", "0123456789abcdef" * 2), (None, 1)])
    assert [is_unbroken(table, column) for column in range(2)] == [False, True]
