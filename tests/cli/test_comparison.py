import math

import pytest

from holdfast.cli.comparison import compare, mean_and_error
from holdfast.experiments import Result
from tests.cli.small import small_spec


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


def test_runs_of_one_measure_that_differ_are_never_mixed():
    found = keys([result(), result(epochs=2), result(seed=1)])
    assert [key["epochs"] for key in found] == [1, 2]
    found = keys([result(), result(measure_settings={"damping": 0.5})])
    assert [key["measure_settings"] for key in found] == ["clamp=task damping=0.1", "clamp=task damping=0.5"]


def test_fields_can_be_chosen():
    assert keys([result(), result(epochs=2)], ["epochs"]) == [{"epochs": 1}, {"epochs": 2}]
    assert compare([]) == []


def test_figures_for_people():
    assert mean_and_error([0.5, 0.7]) == "60.0 ± 10.0"
    assert mean_and_error([0.5]) == "50.0"
    assert mean_and_error([math.nan]) == "-"
