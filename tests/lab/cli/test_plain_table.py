import io

import pytest
from rich.console import Console

from anchorhold_lab.cli.listing.plain_table import Column, Line, PlainTable

COLUMNS = [Column("name", breaks=True), Column("count", right=True)]


def printed(table, width, **options):
    console = Console(file=io.StringIO(), width=width, **{"color_system": None} | options)
    table.print(console)
    return console.file.getvalue()


def test_columns_are_as_wide_as_what_is_in_them():
    table = PlainTable(COLUMNS, [Line(("a", "1")), Line(("longer", "100000"))], title="Two")
    assert printed(table, 40).splitlines() == ["Two", "name     count", "a            1", "longer  100000"]
    assert table.natural_width() == 14


@pytest.mark.parametrize("width", range(20, 60, 3))
def test_what_is_too_long_goes_on_in_the_next_line_and_nothing_is_lost(width):
    words = ["some", "words", "that-are-joined-by-hyphens", "x" * 30, "end"]
    shown = printed(PlainTable(COLUMNS, [Line((" ".join(words), "1"), below="and, at last, " + "y" * 50)]), width)
    assert max(map(len, shown.splitlines())) <= width
    letters = "".join(shown.split())
    assert "xxxx" in letters and letters.count("x") == 30 and letters.count("y") == 52
    assert all(part in letters for part in ("some", "words", "joined", "hyphens", "end", "atlast"))


def test_what_is_below_a_line_is_beside_it_where_there_is_room():
    table = PlainTable(COLUMNS, [Line(("a", "1"), below="more"), Line(("b", "2"))], below="also")
    assert printed(table, 40).splitlines() == ["name  count  also", "a         1  more", "b         2"]
    table = PlainTable(COLUMNS, [Line(("a", "1"), below="more that is long"), Line(("b", "2"))], below="also")
    assert printed(table, 27).splitlines() == [
        *("name  count  also", "a         1", "      more that is long"),
        "b         2",
    ]


def test_wide_letters_are_counted_as_what_they_are():
    shown = printed(PlainTable(COLUMNS, [Line(("漢字", "1")), Line(("abcde", "2"))]), 40).splitlines()
    assert shown == ["name   count", "漢字       1", "abcde      2"]


def test_styles_are_for_terminals():
    table = PlainTable(COLUMNS, [Line(("a", "1")), Line(("b", "2"), "red"), Line(("c", "3"))])
    assert "\x1b" not in printed(table, 40)
    shown = printed(table, 40, color_system="standard", force_terminal=True).splitlines()
    assert "\x1b[31m" in shown[2] and "\x1b" not in shown[1] + shown[3]


def test_a_table_without_lines():
    assert printed(PlainTable(COLUMNS, []), 40) == "name  count\n"
