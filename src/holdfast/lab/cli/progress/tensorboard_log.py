"""Logging to TensorBoard: losses and accuracies of every run, in a folder of its own."""

import json
import math
from pathlib import Path
from typing import TYPE_CHECKING

from holdfast.errors import ConfigurationError, MissingExtraError
from holdfast.lab.cli.progress.listener import Listener
from holdfast.lab.experiments import Event, RunFailed, RunFinished, RunProgress, Spec
from holdfast.lab.training.metrics import average_accuracies

if TYPE_CHECKING:
    from torch.utils.tensorboard import SummaryWriter


class TensorBoardLog(Listener):
    """Writes scalars as the runs go on.

    ``loss/task 1`` and so on count the steps within a task; ``accuracy/…`` count the tasks learned, so that runs with
    tasks of different lengths lie above one another.
    """

    def __init__(self, folder: Path) -> None:
        try:
            from torch.utils.tensorboard import SummaryWriter  # noqa: PLC0415 (an extra, and slow to import)
        except ImportError as error:
            raise MissingExtraError(
                "--tensorboard needs TensorBoard, which is not installed: pip install 'holdfast[tensorboard]'"
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
        for spec, loss, outcome in zip(event.specs, losses, event.outcomes, strict=True):
            if outcome.failure is not None:
                continue
            writer = self._writer(spec)
            if math.isfinite(loss):
                writer.add_scalar(f"loss/task {where.task + 1}", loss, where.step)
            if where.learned:
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
