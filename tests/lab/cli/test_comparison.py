import io
import math

import pytest
from rich.console import Console

from anchorhold_lab.cli.commands.stored_runs import comparison
from anchorhold_lab.cli.commands.stored_runs.comparison import mean_and_error, print_comparison
from anchorhold_lab.experiments import Result, paper_spec
from anchorhold_lab.experiments.store.listing.making_rows import rows_of_results
from tests.lab.cli.small import small_spec


def result(measure="SI", seed=0, accuracy=0.5, **changes):
    return Result(
        spec=small_spec(measure, seed, **changes),
        matrix=((0.9, 0.1), (accuracy, accuracy)),
        untrained=(0.1, 0.1),
        training_seconds=1.0,
        total_seconds=2.0,
        side_by_side=1,
        resumed=0,
        state_digest="",
        device="cpu",
        commit=None,
        versions={},
        finished_at="2026-01-01T00:00:00+00:00",
    )


def compare(results, by=()):
    return comparison.compare(rows_of_results(results), by)


def keys(results, by=()):
    return [line.key for line in compare(results, by)]


def test_seeds_are_averaged_over():
    (line,) = compare([result(seed=0, accuracy=0.5), result(seed=1, accuracy=0.7)])
    assert line.key == {"scenario": "permuted-digits", "measure": "SI", "strength": small_spec().strength}
    assert line.plain()["average_accuracy"] == pytest.approx(0.6)
    assert line.plain()["average_accuracy_error"] == pytest.approx(0.1)
    assert line.plain()["forgetting"] == pytest.approx(0.3)


def test_measures_may_differ_in_settings_as_a_matter_of_course():
    assert [key["measure"] for key in keys([result("SI"), result("EWC")])] == ["SI", "EWC"]
    assert all(set(key) == {"scenario", "measure", "strength"} for key in keys([result("SI"), result("EWC")]))


def test_what_protects_runs_beside_their_measure_is_named_where_they_do_not_differ_in_it_too():
    """A table that says fine-tune of a run with a hold would be of another method."""
    runs = [result("fine-tune", seed, holds=("replay",)) for seed in range(2)]
    (line,) = compare(runs)
    assert line.key["holds"] and "form" not in line.key and "compress" not in line.key
    out = io.StringIO()
    print_comparison([line], Console(file=out, width=120))
    assert "holds" in out.getvalue() and "replay" in out.getvalue()
    assert keys([result("EWC", form="rotated")])[0]["form"] == "rotated"
    assert keys([result("online-EWC", compress=2)])[0]["compress"] == 2


def test_everything_else_in_which_runs_of_a_scenario_differ_is_named():
    """Also what would not be needed to tell the lines apart: the measure alone would do that here."""
    found = keys([result("SI", reinitialise=True), result("fine-tune", epochs=2)])
    assert [(key["reinitialise"], key["epochs"]) for key in found] == [(True, 1), (False, 2)]
    found = keys([result(epochs=1, batch_size=64), result(epochs=2, batch_size=32)])
    assert [(key["epochs"], key["batch_size"]) for key in found] == [(1, 64), (2, 32)]


def test_scenarios_may_differ_in_everything():
    elsewhere = Result(**{**vars(result()), "spec": paper_spec("split-digits", "SI", epochs=9)})
    assert all(set(key) == {"scenario", "measure", "strength"} for key in keys([result(), elsewhere]))


def test_runs_of_one_measure_that_differ_are_never_mixed():
    found = keys([result(), result(epochs=2), result(seed=1)])
    assert [key["epochs"] for key in found] == [1, 2]
    found = keys([result(), result(measure_settings={"damping": 0.5})])
    assert [key["measure.damping"] for key in found] == [0.1, 0.5]
    assert not any("measure.clamp" in key for key in found)


def test_fields_can_be_chosen():
    assert keys([result(), result(epochs=2)], ["epochs"]) == [{"epochs": 1}, {"epochs": 2}]
    assert compare([]) == []


WATCHED = {"watch": ("EWC",), "probes": ("importances",)}


def test_a_run_that_is_watched_as_well_counts_once():
    twice = [result(seed=seed, accuracy=0.5 + seed / 5, **more) for more in ({}, WATCHED) for seed in range(2)]
    (line,) = compare(twice, ["measure"])
    assert line.plain() == compare(twice[:2], ["measure"])[0].plain()
    assert [line.plain()["runs"] for line in compare(twice)] == [2, 2]  # unless it is asked how they were watched
    assert [line.plain()["runs"] for line in compare(twice, ["watch"])] == [2, 2]
    assert "differ" not in printed(twice, 80, ["measure"])


def test_what_else_the_runs_of_a_line_differ_in_is_named_beneath():
    mixed = [result(), result(seed=1, epochs=2, strength=3.0), result("SOS", measure_settings={"alpha": 0.5})]
    *_, last = printed(mixed, 80, ["measure"]).splitlines()
    assert last == "Within a line, runs differ in more than the seed: strength, epochs."
    *_, last = printed(mixed, 80, ["scenario"]).splitlines()
    assert last == "Within a line, runs differ in more than the seed: measure, strength, epochs."
    elsewhere = Result(**{**vars(result()), "spec": paper_spec("split-digits", "SI", epochs=9)})
    *_, last = printed([result(), elsewhere], 80, ["measure"]).splitlines()
    assert last.endswith(": scenario.")
    assert "differ" not in printed(mixed, 80)
    assert "differ" not in printed([result(), result(seed=1)], 80, ["measure"])


def printed(results, width, by=()):
    console = Console(file=io.StringIO(), width=width, color_system=None)
    print_comparison(compare(results, by), console)
    return console.file.getvalue()


MANY = {"epochs": 2, "batch_size": 32, "learning_rate": 0.5, "measure_settings": {"damping": 0.25}, "hidden": (20, 20)}


@pytest.mark.parametrize("width", [200, 80])
def test_all_that_differs_is_shown_whatever_the_width(width):
    shown = printed([result(), result(**MANY), result("fine-tune")], width)
    assert max(map(len, shown.splitlines())) <= width
    words = " ".join(shown.split())
    for part in ("epochs", "batch_size", "learning_rate", "measure.damping", "0.25", "hidden", "20-20", "0.5", "32"):
        assert part in words, shown


def test_a_field_that_was_asked_for_is_shown_though_all_are_alike():
    console = Console(file=io.StringIO(), width=80, color_system=None)
    print_comparison(compare([result(), result("SOS")], ["scenario", "epochs"]), console)
    assert console.file.getvalue().split()[:2] == ["scenario", "epochs"]


def test_each_scenario_has_a_table_of_its_own():
    elsewhere = Result(**{**vars(result()), "spec": paper_spec("split-digits", "SI", epochs=9)})
    lines = printed([result(), elsewhere], 80).splitlines()
    assert [lines[0].strip(), lines[4].strip()] == ["permuted-digits", "split-digits"]


def test_figures_for_people():
    assert mean_and_error([0.5, 0.7]) == "60.0 ± 10.0"
    assert mean_and_error([0.5]) == "50.0"
    assert mean_and_error([math.nan]) == "-"
