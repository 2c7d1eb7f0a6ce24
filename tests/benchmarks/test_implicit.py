"""The benchmark of implicit holds: how wide a range is, and the page."""

import pytest

from benchmarks.implicit import table, ways, width


def test_a_range_is_counted_in_decades():
    assert width({1.0: 80.0, 10.0: 90.0, 100.0: 89.5, 1000.0: 88.5}) == pytest.approx(1 + 0.1 + 0.5)
    assert width({1.0: 90.0, 10.0: None}) == 0
    assert width({1.0: 90.0, 10.0: 90.0, 100.0: 90.0}) == pytest.approx(2)


def test_the_page_has_a_row_for_each_way():
    rows = [
        {**way, "validation": [(1.0, 50.0), (10.0, None)], "best": 1.0, "decades": 0.5, "test": [49.0, 51.0]}
        for way in ways()
    ]
    page = table(rows, {"SGD, diagonal": 1.25}, "permuted-digits")
    assert page.count("| implicit | 1 | 50.0 ± 1.0 | 0.5 | 50.0 | – |") == 6
    assert page.count("explicit | 1 |") == 6 and "- SGD, diagonal: 1.25" in page
