"""Runs whose guard is not told where tasks end: it consolidates by itself, as :class:`anchorhold.TaskFree` does."""

from collections.abc import Collection
from typing import Any

from anchorhold.errors import ConfigurationError
from anchorhold.guard import Guard
from anchorhold.holds.of_batches.buffers import samples_of
from anchorhold.task_free import TaskFree
from anchorhold.task_free.hard_samples import as_batches
from anchorhold_lab.training.protocol import Settings


def task_free_of(settings: Settings, guard: Guard, heads: int, observers: Collection[str]) -> TaskFree | None:
    """Return what tells a run's guard to consolidate; ``None`` where the ends of tasks do."""
    check_task_free(settings, heads, observers)
    if settings.consolidate == "tasks":
        return None
    return TaskFree(guard, every=settings.consolidate if isinstance(settings.consolidate, int) else None)


def check_task_free(settings: Settings, heads: int, observers: Collection[str]) -> None:
    """Refuse a run that has to know where tasks end, and whose guard is not told."""
    if settings.consolidate != "tasks" and (heads > 1 or observers):
        what = "heads of their own for tasks" if heads > 1 else f"probes, {', '.join(observers)}"
        raise ConfigurationError(
            f"consolidate={settings.consolidate!r} with {what}, which are told where tasks end; expected a scenario "
            "with one head and no probes, or consolidate='tasks'."
        )


def state_of(task_free: TaskFree) -> dict[str, Any]:
    """Return where it is at, with its samples: a run has to go on exactly."""
    samples = task_free.samples
    return {
        "position": task_free.state_dict(),
        "recent": [list(batch) for batch in samples.recent],
        "hard": [list(batch) for batch in as_batches(samples.hard)],
    }


def load_state(task_free: TaskFree, state: dict[str, Any]) -> None:
    """Go on from there."""
    task_free.load_state_dict(state["position"])
    task_free.samples.keep([take() for _, take in samples_of([tuple(batch) for batch in state["hard"]], 0)])
    task_free.samples.recent.extend(tuple(batch) for batch in state["recent"])
