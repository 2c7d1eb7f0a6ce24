"""What a terminal shows, from the events of real runs and from those that are hard to bring about."""

import dataclasses
import io
import itertools
from pathlib import Path

import pytest
from rich.console import Console

from anchorhold_lab.cli.progress.json_lines import plain
from anchorhold_lab.cli.progress.labels import duration, held, label_in_search, label_of_group
from anchorhold_lab.cli.progress.lines import Lines, line_of
from anchorhold_lab.cli.progress.live import LiveDisplay
from anchorhold_lab.experiments import CheckpointRejected, RunFailed, RunFinished, RunProgress, RunSkipped, RunStarted
from anchorhold_lab.training.telling.progress import Outcome, Progress
from anchorhold_lab.training.telling.retention import Seen
from tests.lab.cli.small import small_spec, small_store


def terminal(width=80):
    return Console(file=io.StringIO(), force_terminal=True, width=width, color_system=None, legacy_windows=False)


@pytest.fixture(scope="module")
def told(tmp_path_factory):
    return small_store(tmp_path_factory.mktemp("store"), small_spec("SI"), small_spec("SOS"))[1]


@pytest.mark.parametrize("width", [80, 120])
def test_the_display_shows_where_runs_stand_within_the_width(told, width):
    console = terminal(width)
    with LiveDisplay(console, runs=2, clock=map(float, itertools.count()).__next__) as display:
        for event in told:
            display(event)
            display._live.refresh()
    shown = console.file.getvalue()
    for part in ("SI seed 0 ", "task 1/2", "task 2/2", "epoch 1/1", "accuracy so far", "1 of 2 runs done", "left"):
        assert part in shown
    lines = [line.rpartition("\x1b[2K")[2] for line in shown.replace("\r", "\n").split("\n")]
    assert max(len(line) for line in lines if "\x1b" not in line) <= width
    assert any(line.startswith("SOS seed 0: ") and " % in " in line for line in lines)


def test_a_search_does_not_know_how_many_runs_there_will_be(told):
    console = terminal()
    with LiveDisplay(console, None, label_in_search) as display:
        for event in told:
            display(event)
            display._live.refresh()
    shown = console.file.getvalue()
    assert "runs done: 1" in shown and " of " not in shown
    assert "SI seed 0, c = 20: " in shown


def test_groups_that_train_at_once_have_a_bar_each(told):
    console = terminal()
    with LiveDisplay(console, runs=3) as display:
        for event in (progress(small_spec("SI")), progress(small_spec("SOS")), progress(small_spec("SI"))):
            display(event)
        display._live.refresh()
        shown = console.file.getvalue()
        assert "2 runs at once   0 of 3 runs done" in shown
        assert "SOS seed 0 " in shown.rpartition("SI seed 0 ")[2]
        display(next(event for event in told if isinstance(event, RunFinished)))  # SI's
        display(progress(small_spec("SOS")))
        display._live.refresh()
    last = console.file.getvalue().rpartition("2 runs at once")[2]
    assert "SOS seed 0 " in last and "SI seed 0 " not in last
    assert "task 1/2   epoch 1/1" in last  # of the one that is left


def test_the_display_says_that_it_stops(told):
    console = terminal()
    with LiveDisplay(console, runs=1) as display:
        display.stopping()
        for event in told[:3]:
            display(event)
        display._live.refresh()
    assert "Ctrl-C again to stop at once" in console.file.getvalue()


def progress(*specs, learned=False, losses=()):
    matrix = [[0.5, 0.1]] if learned else []
    outcomes = tuple(Outcome([0.1, 0.1], matrix) for _ in specs)
    return RunProgress(specs, Progress(0, 2, 10, 22, 1, 1.0, losses, learned), outcomes)


def test_a_single_task_is_one_task():
    console = terminal()
    Lines(console, clock=lambda: 0.0)(RunStarted(small_spec(seed=0, tasks=1), resumed=False, side_by_side=1, steps=22))
    assert console.file.getvalue() == "SI seed 0 starts, 22 steps in 1 task\n"


def test_lines_are_printed_for_tasks_alone():
    console = terminal()
    lines = Lines(console, clock=lambda: 0.0)
    group = (small_spec(seed=0), small_spec(seed=1))
    lines(RunStarted(group[0], resumed=False, side_by_side=2, steps=44))
    assert console.file.getvalue() == "SI seed 0 starts, 44 steps in 2 tasks, 2 runs side by side\n"
    lines(progress(*group))
    lines(progress(*group, learned=True))
    assert console.file.getvalue().splitlines()[1:] == ["SI seeds 0-1: task 1/2, accuracy so far 50.0 %"]


def test_within_a_long_task_there_is_a_line_a_minute():
    console, now = terminal(), [0.0]
    lines = Lines(console, runs=3, clock=lambda: now[0])
    for seconds in range(0, 130, 5):
        now[0] = float(seconds)
        lines(RunProgress((SPEC,), Progress(0, 2, seconds, 1000, 10, float(seconds)), (Outcome([0.1, 0.1]),)))
    shown = console.file.getvalue().splitlines()
    assert len(shown) == 2
    assert shown[0].startswith("SI seed 0: task 1/2, epoch 1/10, 1 steps/s, ")
    assert shown[0].endswith("1:39:00 left")  # three runs of 2000 steps, of which 60 are done


SPEC = small_spec()


@pytest.mark.parametrize(
    ("event", "line", "kind"),
    [
        (
            RunStarted(SPEC, resumed=True, side_by_side=1, steps=44),
            "SI seed 0 goes on from its last checkpoint",
            "started",
        ),
        (RunFailed(SPEC, "out of memory"), "SI seed 0 failed: out of memory", "failed"),
        (
            RunSkipped(SPEC, "being run by another process"),
            "SI seed 0 skipped: being run by another process",
            "skipped",
        ),
        (
            RunSkipped(SPEC, "failed before", "It diverged."),
            f"SI seed 0 skipped: failed before. It diverged. `anchorhold-lab runs show {SPEC.id[:8]}` tells more.",
            "skipped",
        ),
        (
            CheckpointRejected((SPEC,), Path("bad"), "cut", "from the beginning"),
            "SI seed 0: a checkpoint cannot be used (cut); it is kept as bad, and training goes on from the beginning",
            "checkpoint rejected",
        ),
    ],
)
def test_every_other_event_has_a_line_and_an_object(event, line, kind):
    assert line_of(event)[0] == line
    assert plain(event)["event"] == kind
    assert SPEC.id in str(plain(event))


def test_groups_have_short_names():
    def name(*pairs):
        return label_of_group([small_spec(measure, seed) for measure, seed in pairs])

    assert name(("SI", 4)) == "SI seed 4"
    assert name(("SI", 0), ("SI", 1), ("SI", 2)) == "SI seeds 0-2"
    assert name(("SI", 0), ("SI", 3)) == "SI seeds 0, 3"
    assert name(("SI", 2), ("SOS", 2)) == "SI, SOS seed 2"
    rotated = dataclasses.replace(small_spec("EWC", 1), form="rotated")
    assert label_of_group([rotated]) == "rotated EWC seed 1"


def test_times_are_easy_to_read():
    assert [duration(s) for s in (8.12, 187.4, 3765)] == ["8.1 s", "3:07", "1:02:45"]


def test_how_runs_are_held_is_shown_where_it_is_not_known_before():
    console = terminal(200)
    seen = (Seen(3.2, {"task 1": 0.031, "task 2": 0.01}, 0.05), Seen(12.0, {"task 1": 0.02}, 0.05))
    event = RunProgress((SPEC, small_spec(seed=1)), Progress(0, 2, 10, 22, 1, 1.0, seen=seen), (Outcome([0.1]),) * 2)
    with LiveDisplay(console, runs=2) as display:
        display(event)
        display._live.refresh()
    assert "0.031 of 0.05 nats lost, c = 3.2 … 12" in console.file.getvalue()
    assert held([Seen(None, {})]) == "" and held([Seen(0.0, {"task 1": 0.5})]) == "0.5 nats lost"
    assert plain(event)["strengths"] == [3.2, 12.0] and plain(event)["lost"][1] == {"task 1": 0.02}
