"""Groups of runs that train at once: each has its own pace, and all together they say how long it takes."""

import pytest

from anchorhold_lab.cli.progress.under_way import Pace, UnderWay
from anchorhold_lab.experiments import RunFailed, RunProgress
from anchorhold_lab.training.telling.progress import Outcome, Progress
from tests.lab.cli.small import small_spec

FIRST, SECOND, THIRD, FOURTH = ((small_spec(seed=seed),) for seed in range(4))


def at(specs, step, seconds):
    """Half of a run's two tasks is 100 steps."""
    return RunProgress(specs, Progress(0, 2, step, 100, 10, seconds), tuple(Outcome([0.1, 0.1]) for _ in specs))


def test_two_groups_at_once_have_a_pace_each_and_one_time_for_all():
    now = [0.0]
    under_way = UnderWay(6, clock=lambda: now[0])
    assert under_way.see(at(FIRST, 0, 0.0)).seconds_left is None
    under_way.see(at(SECOND, 0, 0.0))
    now[0] = 10.0
    fast = under_way.see(at(FIRST, 50, 10.0))
    slow = under_way.see(at(SECOND, 25, 10.0))
    assert (fast.pace.rate, slow.pace.rate) == (5.0, 2.5)
    # A quarter of a run and an eighth of another in ten seconds, of six.
    assert slow.seconds_left == pytest.approx((6 - 0.375) * 10 / 0.375)


def test_all_runs_that_are_left_count():
    now = [0.0]
    under_way = UnderWay(6, clock=lambda: now[0])
    under_way.see(at(FIRST + SECOND, 0, 0.0))
    now[0] = 10.0
    # A quarter in ten seconds: thirty more for these two, and forty for each of the two pairs after them.
    assert under_way.see(at(FIRST + SECOND, 50, 10.0)).seconds_left == pytest.approx(110)
    now[0] = 0.5
    assert UnderWay(6, clock=lambda: now[0]).see(at(FIRST, 50, 1.0)).seconds_left is None


def test_runs_that_go_on_from_a_checkpoint_are_not_taken_for_fast():
    now = [0.0]
    under_way = UnderWay(2, clock=lambda: now[0])
    assert under_way.see(at(FIRST, 100, 0.0)).seconds_left is None
    now[0] = 10.0
    # Half a run was there before; a quarter took ten seconds, and a quarter and one run are left.
    assert under_way.see(at(FIRST, 150, 10.0)).seconds_left == pytest.approx(50)
    under_way.see_end(RunFailed(FIRST[0], "out of memory"))
    now[0] = 20.0
    under_way.see(at(SECOND, 100, 0.0))
    now[0] = 30.0
    # Half a run in thirty seconds, of which ten went by between the runs.
    assert under_way.see(at(SECOND, 150, 10.0)).seconds_left == pytest.approx(15)


def test_a_group_of_which_a_run_is_over_is_forgotten():
    under_way = UnderWay(None)
    under_way.see(at(FIRST, 0, 0.0))
    under_way.see(at(SECOND, 0, 0.0))
    under_way.see_end(RunFailed(FIRST[0], "out of memory"))
    assert list(under_way.groups) == [SECOND]


def test_runs_that_go_on_in_other_company_are_counted_once():
    under_way = UnderWay(None)
    under_way.see(at(FIRST + SECOND, 0, 0.0))
    under_way.see(at(THIRD, 0, 0.0))
    under_way.see(at(SECOND, 0, 0.0))
    assert list(under_way.groups) == [THIRD, SECOND]


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
