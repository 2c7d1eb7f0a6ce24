"""Progress where there is no terminal: a line for each task, and one a minute within long ones."""

import time
from collections.abc import Callable

from rich.console import Console

from anchorhold_lab.cli.progress.labels import Label, accuracy_so_far, duration, held, label_of_group, percent
from anchorhold_lab.cli.progress.listener import Display
from anchorhold_lab.cli.progress.under_way import Course, UnderWay
from anchorhold_lab.experiments import (
    CheckpointRejected,
    Event,
    Result,
    RunFailed,
    RunFinished,
    RunProgress,
    RunSkipped,
    RunStarted,
    StoreDamaged,
)
from anchorhold_lab.training.telling.retention import Seen

_EVERY = 60.0
"""Seconds without a line after which there is one about where runs stand."""


def line_of(event: Event, label: Label = label_of_group) -> tuple[str, str] | None:  # noqa: PLR0911 (one for each)
    """Return the line that is worth keeping of an event, with its style; most are only of the moment."""
    match event:
        case RunStarted(spec, resumed=True):
            return f"{label([spec])} goes on from its last checkpoint", "dim"
        case RunFinished(result):
            took = duration(result.training_seconds)
            together = f", {result.side_by_side} runs side by side" if result.side_by_side > 1 else ""
            return f"{label([result.spec])}: {percent(result.average_accuracy)} in {took}{together}{_left(result)}", ""
        case RunFailed(spec, reason):
            return f"{label([spec])} failed: {reason}", "red"
        case RunSkipped(spec, why, reason):
            more = f". {reason} `anchorhold-lab runs show {spec.id[:8]}` tells more." if reason else ""
            return f"{label([spec])} skipped: {why}{more}", "red" if reason else "dim"
        case CheckpointRejected(specs, kept, reason, going_on):
            said = f"a checkpoint cannot be used ({reason}); it is kept as {kept}, and training goes on {going_on}"
            return f"{label(specs)}: {said}", "yellow"
        case StoreDamaged(reason):
            return reason, "red"
    return None


class Lines(Display):
    """Prints a line when a run starts, for each task that was learned, every minute within a task, and at the end."""

    def __init__(
        self,
        console: Console,
        runs: int | None = None,
        label: Label = label_of_group,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._console = console
        self._label = label
        self._under_way = UnderWay(runs, clock)
        self._clock = clock
        self._last = clock()

    def __call__(self, event: Event) -> None:
        """Print what an event says, if it is worth a line."""
        self._under_way.see_end(event)
        if isinstance(event, RunProgress):
            course = self._under_way.see(event)
            if event.progress.learned or self._clock() - self._last >= _EVERY:
                left = course.seconds_left
                parts = parts_of(event, course) + ([f"{duration(left)} left"] if left is not None and left >= 1 else [])
                self._print(f"{self._label(event.specs)}: {', '.join(parts)}", "")
        elif isinstance(event, RunStarted) and not event.resumed:
            beside = f", {event.side_by_side} runs side by side" if event.side_by_side > 1 else ""
            tasks = "1 task" if event.spec.tasks == 1 else f"{event.spec.tasks} tasks"
            said = f"starts, {event.steps:,} steps in {tasks}{beside}"
            self._print(f"{self._label([event.spec])} {said}", "dim")
        elif (line := line_of(event, self._label)) is not None:
            self._print(*line)

    def stopping(self) -> None:
        """Say that the runs stop at the next safe moment."""
        self._print("Stopping; Ctrl-C again to stop at once, without saving.", "yellow")

    def _print(self, line: str, style: str) -> None:
        self._last = self._clock()
        self._console.print(line, style=style, soft_wrap=True)


def _left(result: Result) -> str:
    """Return what a run has lost, and by which strength it was held, where that was not given."""
    if not result.retention:
        return ""
    last = result.retention[-1].seen
    said = held([Seen(result.found_strength, last.lost, last.tolerance)])
    return f", {said}" if said else ""


def parts_of(event: RunProgress, course: Course) -> list[str]:
    """Return where runs stand, how well they do and how fast they go."""
    where, accuracy = event.progress, accuracy_so_far(event.outcomes)
    parts = [f"task {where.task + 1}/{where.tasks}"]
    if not where.learned:
        parts.append(f"epoch {where.epoch + 1}/{where.epochs}")
    if accuracy is not None:
        parts.append(f"accuracy so far {percent(accuracy)}")
    if how := held(where.seen):
        parts.append(how)
    if course.pace.rate is not None:
        parts.append(str(course.pace))
    return parts
