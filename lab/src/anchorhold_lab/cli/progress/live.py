"""Progress in a terminal: a few quiet lines that move, and above them what is done."""

import time
from collections.abc import Callable
from typing import Self

from rich.console import Console, Group
from rich.live import Live
from rich.progress import BarColumn, Progress, TaskID, TaskProgressColumn, TextColumn
from rich.text import Text

from anchorhold_lab.cli.progress.labels import Label, duration, label_of_group
from anchorhold_lab.cli.progress.lines import line_of, parts_of
from anchorhold_lab.cli.progress.listener import Display
from anchorhold_lab.cli.progress.under_way import Course, UnderWay
from anchorhold_lab.experiments import Event, RunProgress, Spec


class LiveDisplay(Display):
    """A bar for the runs that train together, or one for each such group, and where they stand below it."""

    def __init__(
        self,
        console: Console,
        runs: int | None,
        label: Label = label_of_group,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._label = label
        self._bars = Progress(
            TextColumn("{task.description}"),
            BarColumn(bar_width=None),
            TaskProgressColumn(),
            TextColumn("{task.fields[left]}"),
            console=console,
            expand=True,
        )
        self._live = Live(Text("loading", style="dim"), console=console, refresh_per_second=5, transient=True)
        self._under_way = UnderWay(runs, clock)
        self._shown: dict[tuple[Spec, ...], TaskID] = {}
        self._stopping = False

    def __enter__(self) -> Self:
        self._live.start()
        return self

    def close(self) -> None:
        """Take the moving lines away."""
        self._live.stop()

    def __call__(self, event: Event) -> None:
        """Show what an event says."""
        if isinstance(event, RunProgress):
            self._show(event)
            return
        self._under_way.see_end(event)
        if (line := line_of(event, self._label)) is not None:
            text, style = line
            self._live.console.print(text, style=style, soft_wrap=True)

    def stopping(self) -> None:
        """Say that the runs stop at the next safe moment."""
        self._stopping = True

    def _show(self, event: RunProgress) -> None:
        course = self._under_way.see(event)
        for specs in [specs for specs in self._shown if specs not in self._under_way.groups]:
            self._bars.remove_task(self._shown.pop(specs))
        if event.specs not in self._shown:
            self._shown[event.specs] = self._bars.add_task(self._label(event.specs), total=1.0, left="")
        left = "" if course.seconds_left is None else f"{duration(course.seconds_left)} left"
        self._bars.update(self._shown[event.specs], completed=course.share, left=left)
        self._live.update(Group(self._bars, self._state(event, course)))

    def _state(self, event: RunProgress, course: Course) -> Text:
        if self._stopping:
            return Text("stopping; Ctrl-C again to stop at once, without saving", style="yellow")
        parts = parts_of(event, course)
        if len(self._shown) > 1:  # there is no one place where they all stand
            parts = [f"{sum(map(len, self._shown))} runs at once"]
        runs, done = self._under_way.runs, self._under_way.done
        if runs is None:
            parts.append(f"runs done: {done}")
        elif runs > 1:
            parts.append(f"{done} of {runs} runs done")
        return Text("   ".join(parts), style="dim")
