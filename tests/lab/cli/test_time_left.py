import pytest

from anchorhold_lab.cli.progress.time_left import Pace, TimeLeft
from anchorhold_lab.training.telling.progress import Progress


def test_all_runs_that_are_left_count():
    times = iter([0.0, 10.0, 100.0, 110.0])
    left = TimeLeft(clock=lambda: next(times))
    assert left.see(Progress(0, 2, 0, 100, 10, 0.0), "first", 2, 6) is None
    # A quarter in ten seconds: thirty more for these two, and forty for each of the two pairs after them.
    assert left.see(Progress(0, 2, 50, 100, 10, 0.0), "first", 2, 6) == pytest.approx(110)
    # The next ones go on from a checkpoint in their middle, and are as fast.
    assert left.see(Progress(1, 2, 0, 100, 10, 0.0), "second", 2, 4) is None
    assert left.see(Progress(1, 2, 50, 100, 10, 0.0), "second", 2, 4) == pytest.approx(50)


def rates(*seen):
    pace, found = Pace(), []
    for task, step, seconds in seen:
        pace.see(Progress(task, 2, step, 1000, 10, seconds))
        found.append(pace.rate)
    return found


def test_the_rate_is_that_of_steps_within_a_task():
    found = rates((0, 500, 3.0), (0, 700, 5.0), (0, 900, 7.0), (1, 10, 0.5), (1, 110, 1.5))
    assert found == [None, 100, 100, 100, 100]


def test_a_change_of_pace_is_taken_in_gradually():
    assert rates((0, 0, 0.0), (0, 100, 1.0), (0, 300, 2.0))[-1] == pytest.approx(150)


def test_runs_that_go_on_from_an_earlier_moment_of_the_task_are_not_faster_or_slower():
    # A run that is resumed within a task counts its seconds from there.
    assert rates((0, 100, 1.0), (0, 200, 2.0), (0, 150, 0.1), (0, 250, 1.1)) == [None, 100, 100, 100]
    assert rates((0, 100, 1.0), (0, 200, 2.0), (0, 210, 0.1))[-1] == 100


def test_before_two_looks_there_is_no_rate():
    pace = Pace()
    pace.see(Progress(0, 2, 500, 1000, 10, 1.0))
    assert pace.rate is None and str(pace) == ""


def test_a_rate_is_easy_to_read():
    pace = Pace()
    for step in (0, 12345):
        pace.see(Progress(0, 2, step, 20000, 10, step / 12345))
    assert str(pace) == "12,345 steps/s"
