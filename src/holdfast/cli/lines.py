"""Progress where there is no terminal: one line a task."""

from rich.console import Console

from holdfast.cli.labels import Label, accuracy_so_far, duration, label_of_group, percent
from holdfast.cli.listener import Display
from holdfast.cli.pace import Pace
from holdfast.experiments import (
    CheckpointRejected,
    Event,
    RunFailed,
    RunFinished,
    RunProgress,
    RunSkipped,
    RunStarted,
)


def line_of(event: Event, label: Label = label_of_group) -> tuple[str, str] | None:
    """Return the line that is worth keeping of an event, with its style; most are only of the moment."""
    match event:
        case RunStarted(spec, resumed=True):
            return f"{label([spec])} goes on from its last checkpoint", "dim"
        case RunFinished(result):
            took = duration(result.training_seconds)
            together = f", {result.side_by_side} runs side by side" if result.side_by_side > 1 else ""
            return f"{label([result.spec])}: {percent(result.average_accuracy)} in {took}{together}", ""
        case RunFailed(spec, reason):
            return f"{label([spec])} failed: {reason}", "red"
        case RunSkipped(spec, why):
            return f"{label([spec])} skipped: {why}", "dim"
        case CheckpointRejected(specs, kept, reason):
            return f"{label(specs)}: a checkpoint cannot be used ({reason}); it is kept as {kept}", "yellow"
    return None


class Lines(Display):
    """Prints a line for each task that was learned, and for each run."""

    def __init__(self, console: Console, label: Label = label_of_group) -> None:
        self._console = console
        self._label = label
        self._pace = Pace()

    def __call__(self, event: Event) -> None:
        """Print what an event says, if it is worth a line."""
        if isinstance(event, RunProgress):
            self._pace.see(event.progress)
            if event.progress.learned:
                self._print(f"{self._label(event.specs)}: {_learned(event, self._pace)}", "")
        elif (line := line_of(event, self._label)) is not None:
            self._print(*line)

    def stopping(self) -> None:
        """Say that the runs stop at the next safe moment."""
        self._print("Stopping; Ctrl-C again to stop at once, without saving.", "yellow")

    def _print(self, line: str, style: str) -> None:
        self._console.print(line, style=style, soft_wrap=True)


def _learned(event: RunProgress, pace: Pace) -> str:
    accuracy = accuracy_so_far(event.outcomes)
    parts = [f"task {event.progress.task + 1}/{event.progress.tasks}"]
    if accuracy is not None:
        parts.append(f"accuracy so far {percent(accuracy)}")
    if pace.rate is not None:
        parts.append(str(pace))
    return ", ".join(parts)
