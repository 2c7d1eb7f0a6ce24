"""The benchmark of implicit holds: how wide a range is, and the page."""

import pytest

from studies.implicit.study import SLOWER, beside, main, rate_ways, specs_of, table, ways, width


def test_a_range_is_counted_in_decades():
    assert width({1.0: 80.0, 10.0: 90.0, 100.0: 89.5, 1000.0: 88.5}) == pytest.approx(1 + 0.1 + 0.5)
    assert width({1.0: 90.0, 10.0: None}) == 0
    assert width({1.0: 90.0, 10.0: 90.0, 100.0: 90.0}) == pytest.approx(2)


def test_the_page_has_a_row_for_each_way():
    rows = [
        {**way, "validation": [(1.0, 50.0), (10.0, None)], "best": 1.0, "decades": 0.5, "test": [49.0, 51.0]}
        for way in ways()
    ]
    page = table({"rows": rows, "step ratios": {"SGD, diagonal": 1.25}, "torch": "2"}, "permuted-digits")
    assert page.count("| implicit | 1 | 50.0 ± 1.0 | 0.5 | 50.0 | – |") == 8
    assert page.count("explicit | 1 |") == 8 and "- SGD, diagonal: 1.25" in page


def test_the_control_says_the_best_rate_and_what_each_rate_keeps():
    by_rate = [
        {
            **way,
            "validation": [[0.3 / by, [[1.0, 50.0 + by], [10.0, None]]] for by in SLOWER],
            "rate": 0.01,
            "best": 1.0,
            "test": [79.0, 81.0],
        }
        for way in rate_ways()
    ]
    assert {way["optimiser"] for way in rate_ways()} == {"SGD", "momentum"}
    nothing = {"rows": [], "step ratios": {}, "torch": "2"}
    page = table({**nothing, "by rate": by_rate}, "permuted-digits")
    said = "| 0.01 | 1 | 80.0 ± 1.0 | 51.0 (c = 1) | 53.0 (c = 1) | 60.0 (c = 1) | 80.0 (c = 1) |"
    assert page.count(said) == len(by_rate) == 12
    assert "searched too" not in table(nothing, "permuted-digits")


def test_rates_that_were_found_first_are_said_and_forms_without_rows_left_out():
    row = {"validation": [(1.0, 50.0)], "best": 1.0, "decades": 0.0, "test": []}
    rows = [{**way, **row, "rate": 0.1} for way in ways(["rotated"])]
    page = table({"rows": rows, "step ratios": {}, "torch": "2"}, "split-cifar")
    assert "(SGD 0.1, momentum 0.1, which learn the first tasks best without a hold" in page
    assert "--scenario split-cifar" in page and "one other seed" in page
    assert "| rotated | hold |" in page and "| diagonal | hold |" not in page
    usual = specs_of("split-cifar", rows[0], {})(strength=1.0, seed=0)
    assert usual.settings.learning_rate == 0.1 and usual.form_settings["damping"] == 0.001


def test_the_control_is_added_to_what_was_found_and_refused_where_nothing_was(tmp_path, capsys):
    given = [str(tmp_path / "store"), "--results", str(tmp_path), "--quick", "--rates"]
    with pytest.raises(SystemExit):
        main(given)
    assert "there is nothing" in capsys.readouterr().err


def test_rows_of_other_forms_stay_as_they_were():
    known = [{"form": form, "test": [1.0]} for form in ("diagonal", "rotated", "kronecker")]
    found = beside(known, [{"form": "rotated", "test": [2.0]}])
    assert [(row["form"], row["test"]) for row in found] == [
        ("diagonal", [1.0]),
        ("rotated", [2.0]),
        ("kronecker", [1.0]),
    ]
