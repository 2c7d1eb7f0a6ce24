"""Runs that were begun together: which they are, by their folder, by a file in it, and by their checkpoint."""

from dataclasses import dataclass
from pathlib import Path

from anchorhold.errors import DamagedError
from anchorhold_lab.experiments.specs.canonical import digest_of
from anchorhold_lab.experiments.store.checkpoints import has_checkpoint, runs_in_checkpoint
from anchorhold_lab.experiments.store.reading import damaged, read_json

MEMBERS = "members.json"


@dataclass(frozen=True)
class BegunGroup:
    """A folder for the checkpoints of runs that train side by side."""

    folder: Path
    ids: tuple[str, ...]
    """In the order in which they train; none where that cannot be known."""
    damage: str = ""
    """Why it cannot."""

    @property
    def has_checkpoint(self) -> bool:
        """Whether they can go on together."""
        return has_checkpoint(self.folder)


def groups_in(store: Path) -> list[BegunGroup]:
    """Return the groups of a store; what cannot be used in one of them is said of it, and the others are as they are.

    A group's folder is named by a hash of its runs, so that a changed file is noticed. A checkpoint says too whose it
    is, and is believed where it fits the name: hours of training would else be lost with a few bytes.
    """
    return [_group(path) for path in sorted(store.glob(f"groups/*/{MEMBERS}"))]


def _group(path: Path) -> BegunGroup:
    folder = path.parent
    try:
        ids = read_json(path)
        if _are_of(folder, ids):
            return BegunGroup(folder, tuple(ids))
        error = damaged(path, "its runs are not those that its folder is named by", "it was changed from outside")
    except DamagedError as found:
        error = found
    ids = runs_in_checkpoint(folder)
    if _are_of(folder, ids):
        return BegunGroup(folder, tuple(ids))
    return BegunGroup(folder, (), f"{error} Without it, the runs that were begun together there begin anew.")


def _are_of(folder: Path, ids: object) -> bool:
    """Whether these are the ids of the runs that a folder is named by."""
    return isinstance(ids, list) and all(isinstance(run, str) for run in ids) and digest_of(ids) == folder.name
