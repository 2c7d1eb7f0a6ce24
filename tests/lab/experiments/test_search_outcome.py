import json
import math

from anchorhold_lab.experiments import Point, SearchOutcome


def test_a_point_has_the_mean_and_its_error():
    point = Point(1.0, True, (0.5, 0.7))
    assert (point.accuracy, point.failed, point.seeds) == (0.6, 0, 2)
    assert math.isclose(point.error, 0.1)
    assert math.isnan(Point(1.0, True, (0.5,)).error)


def test_a_run_that_failed_has_no_part_in_the_mean():
    assert (Point(1.0, True, (0.5, None)).accuracy, Point(1.0, True, (0.5, None)).failed) == (0.5, 1)
    assert math.isnan(Point(1.0, True, (None,)).accuracy)


def test_points_from_the_best_to_the_worst():
    ranked = [
        Point(2.0, False, (0.8, 0.6)),
        Point(1.0, False, (0.65, 0.65)),
        Point(1.0, True, (0.65, 0.65)),  # a tie: the one that does less
        Point(5.0, False, (0.6, 0.7)),  # a tie: the smaller strength
        Point(0.1, False, (0.2, 0.1)),
        Point(0.2, False, (0.9, None)),  # failures are worse than anything
        Point(0.1, False, (None, None)),
        Point(0.2, False, (None, None)),
    ]
    shuffled = ranked[::-1]
    assert sorted(shuffled, key=lambda point: point.rank) == ranked


def test_sums_in_another_order_are_a_tie():
    a, b = Point(2.0, False, ((0.1 + 0.2) + 0.3,)), Point(1.0, False, (0.1 + (0.2 + 0.3),))
    assert a.accuracy > b.accuracy
    assert b.rank < a.rank


def test_an_outcome_is_written_as_json_knows_it():
    point = Point(1.0, True, (0.5,))
    outcome = SearchOutcome("permuted-digits", "SI", (point, Point(2.0, True, (None,))), point, "the best", point)
    written = json.loads(json.dumps(outcome.to_dict(), allow_nan=False))
    shown = {"strength": 1.0, "reinitialise": True, "seeds": 1, "accuracy": 0.5, "error": None, "accuracies": [0.5]}
    assert written["choice"] == written["test"] == written["points"][0] == shown
    assert written["points"][1]["accuracy"] is None
    assert SearchOutcome("permuted-digits", "SI", (), None, "stopped", stopped="waiting").to_dict()["choice"] is None
