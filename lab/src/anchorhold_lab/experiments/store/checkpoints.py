"""Checkpoints of runs: the last finished task's and a later one within a task, both kept until the run has finished."""

import contextlib
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from anchorhold.errors import StateError
from anchorhold.whole_files import sync_folder
from anchorhold_lab.experiments.store.nested_files import Flattened, read_nested
from anchorhold_lab.experiments.store.provenance import device_name, versions

_FINISHED, _WITHIN = "finished-task", "within-task"
_SUFFIX = ".safetensors"
_RENAMED = {"holdfast": "anchorhold"}
"""What version 0.1.0 called what a checkpoint belongs to."""


@dataclass
class Checkpoint:
    """Everything that runs need to go on exactly."""

    state: dict[str, Any]
    """The engine's."""
    number: int = 0
    """Counts the checkpoints of these runs."""
    resumed: int = 0
    """How often these runs went on from a checkpoint."""
    training_seconds: float = 0.0
    total_seconds: float = 0.0


@dataclass(frozen=True)
class Rejected:
    """A checkpoint that cannot be used."""

    kept: Path
    """Where it lies now."""
    reason: str


class Checkpoints:
    """The checkpoints of one run, or of several that train side by side.

    Args:
        folder: where they lie.
        ids: the runs, in the order in which they train together.
        device: what they train on. A run is made by one kind of device and one set of versions from beginning to end;
            a checkpoint of another is not used.
    """

    def __init__(self, folder: Path, ids: Sequence[str], device: torch.device) -> None:
        self.folder = folder
        self._belongs = {"runs": list(ids), "device": device_name(device), **versions()}
        self._writer = ThreadPoolExecutor(max_workers=1, thread_name_prefix="checkpoint")
        self._being_written: Future[None] | None = None

    def save(self, checkpoint: Checkpoint, *, finished_task: bool) -> None:
        """Write a checkpoint in place of the last one of its kind, while whoever called goes on.

        What goes wrong is raised by the next call of this, of :meth:`wait` or of :meth:`discard`.
        """
        flattened = Flattened.of({"belongs": self._belongs, "checkpoint": vars(checkpoint)})
        self.wait()
        self._being_written = self._writer.submit(self._write, flattened, finished_task=finished_task)

    def wait(self) -> None:
        """Wait until the last checkpoint is written."""
        written, self._being_written = self._being_written, None
        if written is not None:
            written.result()

    def close(self) -> None:
        """Wait for the writing to end, whether well or not."""
        self._writer.shutdown()

    def load(self) -> tuple[Checkpoint | None, list[Rejected]]:
        """Return the latest checkpoint that is whole, and those that are not, which are kept under other names."""
        found: list[Checkpoint] = []
        rejected: list[Rejected] = []
        for path in (self._path(_FINISHED), self._path(_WITHIN)):
            if not path.exists():
                continue
            try:
                found.append(self._read(path))
            except StateError as error:
                rejected.append(Rejected(_set_aside(path), str(error)))
        return max(found, key=lambda checkpoint: checkpoint.number, default=None), rejected

    def discard(self) -> None:
        """Remove them, once they are no longer needed."""
        self.wait()
        remove_checkpoints(self.folder)

    def _path(self, name: str) -> Path:
        return self.folder / (name + _SUFFIX)

    def _write(self, flattened: Flattened, *, finished_task: bool) -> None:
        flattened.write(self._path(_FINISHED if finished_task else _WITHIN))
        if finished_task:
            self._path(_WITHIN).unlink(missing_ok=True)

    def _read(self, path: Path) -> Checkpoint:
        belongs, checkpoint = _parts(path)
        for what, here in self._belongs.items():
            if belongs.get(what) != here:
                raise StateError(f"{str(path)!r} was made with {what} {belongs.get(what)}; here it is {here}.")
        return checkpoint


def _parts(path: Path) -> tuple[dict[str, Any], Checkpoint]:
    """Return whose a checkpoint is, and the checkpoint."""
    content = read_nested(path)
    try:
        belongs = {_RENAMED.get(what, what): value for what, value in content["belongs"].items()}
        return belongs, Checkpoint(**content["checkpoint"])
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise StateError(f"{str(path)!r} holds a nested state, but not a checkpoint's.") from error


def runs_in_checkpoint(folder: Path) -> Any:
    """Return which runs the checkpoint in a folder is of, by itself; ``None`` where none can be read."""
    for name in (_FINISHED, _WITHIN):
        with contextlib.suppress(StateError, OSError):
            return _parts(folder / (name + _SUFFIX))[0].get("runs")
    return None


def is_checkpoint(path: Path) -> bool:
    """Whether a file is a checkpoint, by its name."""
    return path.name in (_FINISHED + _SUFFIX, _WITHIN + _SUFFIX)


def has_checkpoint(folder: Path) -> bool:
    """Whether a folder holds a checkpoint."""
    return any((folder / (name + _SUFFIX)).exists() for name in (_FINISHED, _WITHIN))


def remove_checkpoints(folder: Path) -> None:
    """Remove the checkpoints in a folder; those set aside stay."""
    for name in (_WITHIN, _FINISHED):
        (folder / (name + _SUFFIX)).unlink(missing_ok=True)


def _set_aside(path: Path) -> Path:
    """Move a checkpoint to a name that is not in use."""
    number = 1
    while (kept := path.with_name(f"rejected-{number}-{path.name}")).exists():
        number += 1
    path.rename(kept)
    sync_folder(kept.parent)
    return kept
