"""What is kept for one measure: the total so far, and the running state of the current task."""

from collections.abc import Mapping
from dataclasses import dataclass, field

import torch
from torch import Tensor

from holdfast.errors import NotFiniteError
from holdfast.measures import Measure, PathMeasure
from holdfast.tensors.sharding import local, wrap_local
from holdfast.tensors.storage import Storage, at_hand, running_dtype


@dataclass
class TaskImportance:
    """What a measure found for one task."""

    importance: dict[str, Tensor]
    """ω, the task's importance, as added to the total."""

    raw: dict[str, Tensor] | None = None
    """What a path measure accumulated: ω̃ before clamping and rescaling for SI, v before the root for SOS."""

    samples: int | None = None
    """How many samples a measure after training has seen."""

    fallback: dict[str, str] = field(default_factory=dict)
    """The parameters whose per-sample gradients no rule covered, with the way they were found instead."""


@dataclass(frozen=True)
class PathRecord:
    """What has been measured along the path of the current task so far."""

    running: dict[str, dict[str, Tensor]]
    """The running state of every path measure: by the measure's name, then by parameter."""
    start: dict[str, Tensor]
    """θ(0), every parameter just before the task's first step."""
    steps: int
    """How many steps the task has taken."""


@dataclass
class Ledger:
    """The account of one measure."""

    measure: Measure
    storage: Storage = field(default_factory=Storage)
    total: dict[str, Tensor] = field(default_factory=dict)
    running: dict[str, Tensor] = field(default_factory=dict)
    held: dict[str, Tensor] = field(default_factory=dict)
    """Ω as the penalty uses it: the total, clamped at 0 where the measure leaves that to the end."""

    def running_for(self, name: str, parameter: Tensor) -> Tensor:
        """Return a parameter's running state, zeros at first, never in less than single precision."""
        if name not in self.running:
            nothing = torch.zeros_like(parameter, dtype=running_dtype(parameter), requires_grad=False)
            self.running[name] = self.storage.running(nothing, parameter)
        return self.running[name]

    def task_importance(
        self, parameters: Mapping[str, Tensor], start: Mapping[str, Tensor], steps: Mapping[str, int]
    ) -> TaskImportance:
        """Return what this path measure found during the task; parameters that took no step have importance 0."""
        assert isinstance(self.measure, PathMeasure)
        importance = {}
        for name, parameter in parameters.items():
            state = self.running.get(name)
            if state is None:
                importance[name] = torch.zeros_like(parameter, dtype=running_dtype(parameter), requires_grad=False)
                continue
            own = local(at_hand(state, parameter))
            moved = torch.zeros_like(own)
            if name in start:
                moved = local(parameter.detach()).to(own.dtype) - local(at_hand(start[name], parameter))
            importance[name] = wrap_local(self.measure.importance(own, moved, steps[name]), parameter)
        return TaskImportance(importance, raw=dict(self.running))

    def new_total(
        self, importance: Mapping[str, Tensor], decay: float, parameters: Mapping[str, Tensor]
    ) -> dict[str, Tensor]:
        """Return the total with a task's importance taken in, changing nothing yet."""
        total = dict(self.total)
        for name, omega in importance.items():
            added = omega
            if name in total and not self.measure.replaces_total:
                added = torch.add(omega, at_hand(total[name], omega), alpha=decay)
            total[name] = self.storage.resting(added, parameters[name])
            if not bool(local(total[name]).isfinite().all()):
                raise NotFiniteError(
                    f"{self.measure.name}: the importance of {name!r} is not finite, so nothing was consolidated; the "
                    "previous anchor and importance still hold. Look for NaN or overflow in this task's gradients and "
                    "weights; restart_task() drops what was gathered since the last consolidation."
                )
        return total

    def settle(self, total: dict[str, Tensor]) -> None:
        """Make a total the current one."""
        self.total = total
        clamped = self.measure.clamps_total
        self.held = {name: value.clamp(min=0) for name, value in total.items()} if clamped else total

    def restart(self) -> None:
        """Forget the running state; the tensors themselves belong to whoever was given them."""
        self.running = {}
