import pytest

from holdfast.lab.cli.progress.time_left import TimeLeft
from holdfast.lab.training.progress import Progress


def test_all_runs_that_are_left_count():
    times = iter([0.0, 10.0, 100.0, 110.0])
    left = TimeLeft(clock=lambda: next(times))
    assert left.see(Progress(0, 2, 0, 100, 10, 0.0), "first", 2, 6) is None
    # A quarter in ten seconds: thirty more for these two, and forty for each of the two pairs after them.
    assert left.see(Progress(0, 2, 50, 100, 10, 0.0), "first", 2, 6) == pytest.approx(110)
    # The next ones go on from a checkpoint in their middle, and are as fast.
    assert left.see(Progress(1, 2, 0, 100, 10, 0.0), "second", 2, 4) is None
    assert left.see(Progress(1, 2, 50, 100, 10, 0.0), "second", 2, 4) == pytest.approx(50)
