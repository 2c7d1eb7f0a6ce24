"""What a run leaves behind: its result, or why it failed, and what a store knows of it."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Literal

from anchorhold.errors import ConfigurationError
from anchorhold.settings import added, check_fields, check_keys, written
from anchorhold_lab.experiments.specs.spec import Spec
from anchorhold_lab.training.metrics import average_accuracy, backward_transfer, forgetting, forward_transfer
from anchorhold_lab.training.telling.retention import TaskRetention


@dataclass(frozen=True)
class Result:
    """A finished run."""

    spec: Spec
    matrix: tuple[tuple[float, ...], ...]
    """Row i: the accuracy on every task after learning task i."""
    untrained: tuple[float, ...]
    """The untrained network's accuracy on every task."""
    training_seconds: float
    """The time inside the engine, for all runs that trained side by side with this one."""
    total_seconds: float
    """The same with loading, checkpoints and whoever listened to the events."""
    side_by_side: int
    """How many runs trained together, this one included."""
    resumed: int
    """How often the run went on from a checkpoint."""
    state_digest: str
    """The sha256 of the engine's last state: weights, importances, optimizer. Equal runs have equal ones."""
    device: str
    commit: str | None
    """The commit of anchorhold's source, if it is a git checkout."""
    versions: Mapping[str, str]
    finished_at: str
    """UTC, ISO 8601."""
    retention: tuple[TaskRetention, ...] = added(())
    """How each task was held and what was left of those before it, where a strength was found or inputs were kept."""
    strength_record: Mapping[str, float | None] | None = added(None)
    """c, κ, T and tr Q after the last task, by which results can be compared, as ``guard.held.record()`` returns
    them; ``None`` for those of version 0.1.0."""

    @property
    def seconds(self) -> float:
        """This run's share of the time inside the engine."""
        return self.training_seconds / self.side_by_side

    @property
    def average_accuracy(self) -> float:
        """The mean accuracy over all tasks after the last: the paper's figure."""
        return average_accuracy(self.matrix)

    @property
    def forgetting(self) -> float:
        """How far accuracy fell from its best to its last."""
        return forgetting(self.matrix)

    @property
    def backward_transfer(self) -> float:
        """What later tasks did to earlier ones."""
        return backward_transfer(self.matrix)

    @property
    def forward_transfer(self) -> float:
        """What earlier tasks did for later ones."""
        return forward_transfer(self.matrix, self.untrained)

    @property
    def found_strength(self) -> float | None:
        """The c that a relative strength has become, or that a tolerance ended at; ``None`` where c was given."""
        given = self.spec.relative_strength is None and self.spec.tolerance is None
        return None if given or not self.retention else self.retention[-1].strength

    @property
    def worst_kl(self) -> float | None:
        """KL(p_old‖p_new) of the task that has lost most, in nats a sample, at the end; ``None`` if none is kept."""
        return self.retention[-1].kl if self.retention else None

    @property
    def metrics(self) -> dict[str, float]:
        """The four figures by name."""
        names = ("average_accuracy", "forgetting", "backward_transfer", "forward_transfer")
        return {name: getattr(self, name) for name in names}

    def to_dict(self) -> dict[str, Any]:
        """Return the result as plain values, ready for JSON, with its metrics for those who read the file alone."""
        values = written(self)
        # JSON has no NaN, which is what the transfers of a single task are.
        metrics = {name: None if math.isnan(value) else value for name, value in self.metrics.items()}
        if self.retention:
            values["retention"] = [noted.to_dict() for noted in self.retention]
        return {**values, "spec": self.spec.to_dict(), "versions": dict(self.versions), "metrics": metrics}

    @classmethod
    def from_dict(cls, given: Mapping[str, Any]) -> "Result":
        """Return the result of :meth:`to_dict`."""
        check_fields(given, cls, "The result", more=["metrics"])
        values = {key: value for key, value in given.items() if key != "metrics"}
        values.update(
            spec=Spec.from_dict(given["spec"]),
            matrix=tuple(tuple(row) for row in given["matrix"]),
            untrained=tuple(given["untrained"]),
            retention=tuple(TaskRetention.from_dict(noted) for noted in given.get("retention", ())),
        )
        result = cls(**values)
        result._check_values()
        result._check_metrics(given["metrics"])
        return result

    def _check_values(self) -> None:
        """Refuse what no run can have left behind: a file may have been changed since it was written."""
        count = self.spec.tasks
        rows = (*self.matrix, self.untrained)
        whole = len(self.matrix) == count and all(len(row) == count and all(map(_is_share, row)) for row in rows)
        if not whole:
            raise ConfigurationError(
                f"The result's accuracies are not {count} numbers from 0 to 1 for each of {count} tasks."
            )
        right = {
            "training_seconds": _is_number(self.training_seconds) and self.training_seconds >= 0,
            "total_seconds": _is_number(self.total_seconds) and self.total_seconds >= 0,
            "side_by_side": type(self.side_by_side) is int and self.side_by_side >= 1,
            "resumed": type(self.resumed) is int and self.resumed >= 0,
            "state_digest": isinstance(self.state_digest, str),
            "strength_record": self.strength_record is None or _is_record(self.strength_record),
        }
        _refuse_wrong("The result", right | _origin(self, self.finished_at, "finished_at"))

    def _check_metrics(self, given: Any) -> None:
        """Refuse metrics that do not follow from the accuracies: one of the two was changed."""
        check_keys(given, self.metrics, "The result's metrics")
        for name, value in self.metrics.items():
            told = given[name]
            same = told is None if math.isnan(value) else _is_number(told) and math.isclose(told, value, abs_tol=1e-9)
            if not same:
                raise ConfigurationError(f"The result tells a {name} of {told}, and its accuracies make {value}.")


def _is_record(given: object) -> bool:
    return isinstance(given, Mapping) and all(value is None or _is_number(value) for value in given.values())


@dataclass(frozen=True)
class Failure:
    """Why a run could not go on."""

    reason: str
    failed_at: str
    """UTC, ISO 8601."""
    device: str
    commit: str | None
    versions: Mapping[str, str]

    def to_dict(self) -> dict[str, Any]:
        """Return the failure as plain values, ready for JSON."""
        return {**written(self), "versions": dict(self.versions)}

    @classmethod
    def from_dict(cls, given: Mapping[str, Any]) -> "Failure":
        """Return the failure of :meth:`to_dict`."""
        check_fields(given, cls, "The failure")
        failure = cls(**given)
        right = {"reason": isinstance(failure.reason, str)}
        _refuse_wrong("The failure", right | _origin(failure, failure.failed_at, "failed_at"))
        return failure


def _origin(found: Result | Failure, moment: object, name: str) -> dict[str, bool]:
    """Return by name whether what says where and when something was made is of the right form."""
    return {
        "device": isinstance(found.device, str),
        "commit": found.commit is None or isinstance(found.commit, str),
        "versions": isinstance(found.versions, Mapping)
        and all(isinstance(version, str) for version in found.versions.values()),
        name: _is_moment(moment),
    }


def _refuse_wrong(what: str, right: Mapping[str, bool]) -> None:
    if wrong := [name for name, fits in right.items() if not fits]:
        raise ConfigurationError(f"{what} has {', '.join(wrong)} of the wrong type, or out of range.")


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def _is_share(value: object) -> bool:
    return isinstance(value, int | float) and _is_number(value) and 0 <= value <= 1


def _is_moment(value: object) -> bool:
    """Whether something is a time as ISO 8601 has it."""
    if not isinstance(value, str):
        return False
    try:
        datetime.fromisoformat(value)
    except ValueError:
        return False
    return True


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
