"""Progress for machines: every event as one JSON object on a line of its own."""

from typing import Any

from anchorhold_lab.cli.output import print_json
from anchorhold_lab.cli.progress.listener import Display
from anchorhold_lab.experiments import (
    CheckpointRejected,
    Event,
    RunFailed,
    RunFinished,
    RunProgress,
    RunSkipped,
    RunStarted,
    Spec,
    StoreDamaged,
)
from anchorhold_lab.training.metrics import average_accuracies
from anchorhold_lab.training.telling.progress import Progress


class JsonLines(Display):
    """Prints every event; tasks, steps and epochs are counted from 0, as in Python."""

    def __call__(self, event: Event) -> None:
        """Print an event."""
        print_json(plain(event))

    def stopping(self) -> None:
        """Say that the runs stop at the next safe moment."""
        print_json({"event": "stopping"})


def plain(event: Event) -> dict[str, Any]:  # noqa: PLR0911 (one for each event)
    """Return an event as plain values."""
    match event:
        case RunStarted(spec, resumed, side_by_side, steps):
            how = {"resumed": resumed, "side_by_side": side_by_side, "steps": steps}
            return {"event": "started", **_who(spec), **how}
        case RunProgress(specs, progress, outcomes):
            return {
                "event": "progress",
                "ids": [spec.id for spec in specs],
                "task": progress.task,
                "tasks": progress.tasks,
                "epoch": progress.epoch,
                "epochs": progress.epochs,
                "step": progress.step,
                "steps": progress.steps,
                "losses": list(progress.losses),
                "learned": progress.learned,
                "accuracies": [average_accuracies(found.matrix)[-1] if found.matrix else None for found in outcomes],
                **_held(progress),
            }
        case RunFinished(result):
            metrics: dict[str, Any] = {
                **result.metrics,
                "seconds": result.training_seconds,
                "side_by_side": result.side_by_side,
            }
            if result.retention:
                metrics["retention"] = [noted.to_dict() for noted in result.retention]
            return {"event": "finished", **_who(result.spec), **metrics}
        case RunFailed(spec, reason):
            return {"event": "failed", **_who(spec), "reason": reason}
        case RunSkipped(spec, why, reason):
            return {"event": "skipped", **_who(spec), "why": why, "reason": reason or None}
        case CheckpointRejected(specs, kept, reason, going_on):
            ids = [spec.id for spec in specs]
            said = {"kept": str(kept), "reason": reason, "going_on": going_on}
            return {"event": "checkpoint rejected", "ids": ids, **said}
        case StoreDamaged(reason):
            return {"event": "store damaged", "reason": reason}


def _held(progress: Progress) -> dict[str, Any]:
    """Return how runs are held and what they have lost, of those that note it: c, and the KL of each kept set."""
    if not progress.seen:
        return {}
    return {"strengths": [each.strength for each in progress.seen], "lost": [dict(each.lost) for each in progress.seen]}


def _who(spec: Spec) -> dict[str, Any]:
    names = ("id", "scenario", "measure", "strength", "seed")
    ways = {name: getattr(spec, name) for name in ("relative_strength", "tolerance")}
    said = {name: value for name, value in ways.items() if value is not None}
    return {**{name: getattr(spec, name) for name in names}, **said, "reinitialise": spec.settings.reinitialise}
