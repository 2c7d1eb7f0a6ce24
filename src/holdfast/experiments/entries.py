"""All that a store holds of one run, also where some of it is damaged."""

from dataclasses import dataclass
from typing import Literal

from holdfast.experiments.results import Failure, Result
from holdfast.experiments.spec import Spec

Status = Literal["finished", "failed", "started", "unknown", "damaged"]


@dataclass(frozen=True)
class Entry:
    """A run in a store."""

    id: str
    status: Status
    spec: Spec | None
    """``None`` where it cannot be read."""
    result: Result | None
    failures: tuple[Failure, ...]
    damage: str = ""
    """Which files cannot be used, and why."""

    @property
    def order(self) -> tuple[int, str]:
        """Finished runs come first, the oldest at the top, and damaged ones last."""
        if self.status == "finished" and self.result is not None:
            return 0, self.result.finished_at
        return (2 if self.status == "damaged" else 1), self.id
