"""Groups of runs that train at once: each has its own pace, and all together they say how long it takes."""

import pytest

from anchorhold_lab.cli.progress.running_groups import UnderWay
from anchorhold_lab.experiments import RunProgress
from anchorhold_lab.training.telling.progress import Outcome, Progress
from tests.lab.cli.small import small_spec

FIRST, SECOND, THIRD, FOURTH = ((small_spec(seed=seed),) for seed in range(4))


def at(specs, step, seconds):
    """Half of a run's two tasks is 100 steps."""
    return RunProgress(specs, Progress(0, 2, step, 100, 10, seconds), tuple(Outcome([0.1, 0.1]) for _ in specs))


def test_two_groups_at_once_have_a_pace_each_and_halve_the_time():
    now = [0.0]
    under_way = UnderWay(6, clock=lambda: now[0])
    under_way.see(at(FIRST, 0, 0.0), 0)
    under_way.see(at(SECOND, 0, 0.0), 0)
    now[0] = 10.0
    fast = under_way.see(at(FIRST, 50, 10.0), 0)
    slow = under_way.see(at(SECOND, 25, 10.0), 0)
    assert (fast.pace.rate, slow.pace.rate) == (5.0, 2.5)
    # A quarter of a run in ten seconds: thirty more for these, and forty for each of the two pairs after them.
    assert fast.seconds_left == pytest.approx(110)


def test_a_group_of_which_a_run_is_over_is_forgotten():
    under_way = UnderWay(None)
    under_way.see(at(FIRST, 0, 0.0), 0)
    under_way.see(at(SECOND, 0, 0.0), 0)
    under_way.end(FIRST[0])
    assert list(under_way.groups) == [SECOND]


def test_runs_that_go_on_in_other_company_are_counted_once():
    under_way = UnderWay(None)
    under_way.see(at(FIRST + SECOND, 0, 0.0), 0)
    under_way.see(at(THIRD, 0, 0.0), 0)
    under_way.see(at(SECOND, 0, 0.0), 0)
    assert list(under_way.groups) == [THIRD, SECOND]
