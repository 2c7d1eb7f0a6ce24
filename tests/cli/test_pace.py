import pytest

from holdfast.cli.pace import Pace
from holdfast.training.progress import Progress


def test_the_rate_is_that_of_steps_within_a_task():
    times = iter([0.0, 2.0, 4.0, 100.0, 101.0])
    pace = Pace(clock=lambda: next(times))
    seen = []
    for task, step in [(0, 500), (0, 700), (0, 900), (1, 10), (1, 110)]:
        pace.see(Progress(task, 2, step, 1000, 10, 0.0))
        seen.append(pace.rate)
    assert seen == [None, 100, 100, 100, 100]
    assert str(pace) == "100 steps/s"


def test_a_change_of_pace_is_taken_in_gradually():
    times = iter([0.0, 1.0, 2.0])
    pace = Pace(clock=lambda: next(times))
    for step in (0, 100, 300):
        pace.see(Progress(0, 2, step, 1000, 10, 0.0))
    assert pace.rate == pytest.approx(150)


def test_before_two_looks_there_is_no_rate():
    pace = Pace()
    pace.see(Progress(0, 2, 500, 1000, 10, 0.0))
    assert pace.rate is None and str(pace) == ""
