"""A run in a line: what can be listed, filtered and compared without its accuracies on every task."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from anchorhold_lab.experiments.store.run_results import Result


class Figures(NamedTuple):
    """What came out of a finished run."""

    average_accuracy: float
    forgetting: float
    backward_transfer: float
    forward_transfer: float
    training_seconds: float
    """For all runs that trained side by side with this one."""
    side_by_side: int
    finished_at: str
    device: str
    found_strength: float | None = None
    """The c that a relative strength has become, or that a tolerance ended at."""
    worst_kl: float | None = None
    """What was lost of the task that has lost most, in nats a sample, where inputs were kept."""

    @classmethod
    def of(cls, result: "Result") -> "Figures":
        """Return a result's figures."""
        return cls(*(getattr(result, name) for name in cls._fields))

    @property
    def metrics(self) -> dict[str, float]:
        """The four figures of merit by name."""
        return dict(zip(self._fields[:4], self[:4], strict=True))

    @property
    def seconds(self) -> float:
        """This run's share of the time inside the engine."""
        return self.training_seconds / self.side_by_side


class Row(NamedTuple):
    """A run in a store, as its files say."""

    id: str
    status: str
    """As in an :class:`~anchorhold_lab.experiments.Entry`."""
    setting: Mapping[str, Any]
    """All that decides the run but its seed, by name, as values that can be hashed: one object for all runs that have
    it in common. Empty where the run's spec cannot be read."""
    seed: int | None
    unusual: tuple[str, ...]
    """The names in ``setting`` of all that is not as usual for the run's scenario and measure; not the strength."""
    figures: Figures | None
    """``None`` for a run without a result."""
    damage: str = ""
    """Which files cannot be used, and why."""

    @property
    def order(self) -> tuple[int, str]:
        """Finished runs come first, the oldest at the top, and damaged ones last."""
        if self.status == "finished" and self.figures is not None:
            return 0, self.figures.finished_at
        return (2 if self.status == "damaged" else 1), self.id
