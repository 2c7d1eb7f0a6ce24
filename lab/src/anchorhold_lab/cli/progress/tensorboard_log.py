"""Logging to TensorBoard: losses and accuracies of every run, in a folder of its own."""

import json
import math
from pathlib import Path
from typing import TYPE_CHECKING

from anchorhold.errors import ConfigurationError, MissingExtraError
from anchorhold_lab.cli.progress.listener import Listener
from anchorhold_lab.experiments import Event, RunFailed, RunFinished, RunProgress, Spec
from anchorhold_lab.training.metrics import average_accuracies
from anchorhold_lab.training.telling.progress import Progress
from anchorhold_lab.training.telling.retention import Seen, TaskRetention

if TYPE_CHECKING:
    from torch.utils.tensorboard import SummaryWriter


class TensorBoardLog(Listener):
    """Writes scalars as the runs go on.

    ``loss/task 1`` and so on count the steps within a task; ``accuracy/…`` count the tasks learned, so that runs with
    tasks of different lengths lie above one another. Where inputs are kept, or a strength is found, there are
    ``strength/task 2`` and ``lost/task 2/of task 1`` within a task, and ``kept/…`` after each: KL, agreement, and the
    loss then and now.
    """

    def __init__(self, folder: Path) -> None:
        try:
            from torch.utils.tensorboard import SummaryWriter  # noqa: PLC0415 (an extra, and slow to import)
        except ImportError as error:
            raise MissingExtraError(
                "--tensorboard needs TensorBoard, which is not installed: pip install 'anchorhold-lab[tensorboard]'"
            ) from error
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise ConfigurationError(f"--tensorboard {folder} cannot be made: {error.strerror}.") from error
        self._make = SummaryWriter
        self._folder = folder
        self._writers: dict[str, SummaryWriter] = {}

    def close(self) -> None:
        """End all files."""
        for writer in self._writers.values():
            writer.close()

    def __call__(self, event: Event) -> None:
        """Write what an event says."""
        if isinstance(event, RunProgress):
            self._write(event)
        elif isinstance(event, RunFinished | RunFailed):
            spec = event.result.spec if isinstance(event, RunFinished) else event.spec
            if (writer := self._writers.pop(spec.id, None)) is not None:
                writer.close()

    def _write(self, event: RunProgress) -> None:
        where = event.progress
        # Runs that have failed stay among those side by side, with a loss that is no number.
        losses = where.losses or (math.nan,) * len(event.specs)
        every = where.seen or (None,) * len(event.specs)
        for spec, loss, outcome, seen in zip(event.specs, losses, event.outcomes, every, strict=True):
            if outcome.failure is not None:
                continue
            writer = self._writer(spec)
            if math.isfinite(loss):
                writer.add_scalar(f"loss/task {where.task + 1}", loss, where.step)
            if seen is not None and not where.learned:
                _write_seen(writer, seen, where)
            if where.learned:
                for noted in outcome.retention[-1:]:
                    _write_retention(writer, noted)
                learned = len(outcome.matrix)
                writer.add_scalar("accuracy/average", average_accuracies(outcome.matrix)[-1], learned)
                for task, accuracy in enumerate(outcome.matrix[-1][:learned]):
                    writer.add_scalar(f"accuracy/task {task + 1}", accuracy, learned)

    def _writer(self, spec: Spec) -> "SummaryWriter":
        if spec.id not in self._writers:
            folder = self._folder / f"{spec.scenario}-{spec.measure}-seed{spec.seed}-{spec.id[:8]}"
            writer = self._make(str(folder))
            writer.add_text("spec", f"```\n{json.dumps(spec.to_dict(), indent=1)}\n```")
            self._writers[spec.id] = writer
        return self._writers[spec.id]


def _write_seen(writer: "SummaryWriter", seen: Seen, where: Progress) -> None:
    """Write how a run is held within a task, and what it has lost by the last looks."""
    if seen.strength is not None:
        writer.add_scalar(f"strength/task {where.task + 1}", seen.strength, where.step)
    for name, kl in seen.lost.items():
        writer.add_scalar(f"lost/task {where.task + 1}/of {name}", kl, where.step)


def _write_retention(writer: "SummaryWriter", noted: TaskRetention) -> None:
    """Write what is left of each task once another has been taken in."""
    learned = noted.task + 1
    if noted.strength is not None:
        writer.add_scalar("kept/strength", noted.strength, learned)
    if noted.share is not None:
        writer.add_scalar("kept/share of the way", noted.share, learned)
    for each in noted.sets:
        for name in ("kl", "error", "agreement", "loss_then", "loss_now"):
            if (value := getattr(each, name)) is not None:
                writer.add_scalar(f"kept/{name}/{each.name}", value, learned)
