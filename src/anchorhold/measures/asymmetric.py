r"""Asymmetric SI: an old loss that is seen on one side alone is taken to be steeper on the other.

Park, Hong, Han and Lee 2019, "Continual Learning by Asymmetric Loss Approximation with Single-Side Overestimation"
(ALASSO, arXiv 1908.02984). A task's training came to its solution θ* from somewhere, and what the loss does on that
side was seen; what it does on the other is anybody's guess, and a guess too high forgets less than one too low:

.. math:: \hat L(d) = \begin{cases} \Omega\,d^2 & \text{where training came from}\\
          (a\,\Omega + \epsilon)\,d^2 & \text{on the other side}\end{cases} \qquad d = \theta - \theta^*

The hold ``asymmetric`` trains with it (:mod:`anchorhold.holds.of_weights.asymmetric`), and the measure has it as the
loss of all tasks before, with a strength and a factor of its own.
"""

import dataclasses
from collections.abc import Mapping
from typing import ClassVar, Literal

import torch
from torch import Tensor

from anchorhold.measures.base import Finished, Needs, PathMeasure, Seen, States, TaskRecord
from anchorhold.measures.recurrences import add_to_path_, rescaled
from anchorhold.settings import number


def overestimate(omega: Tensor, d: Tensor, side: Tensor, factor: float, epsilon: float = 0.0) -> Tensor:
    """Return what the unseen side has beyond Ω, (a − 1)Ω + ε, and 0 where training came from.

    Args:
        omega: Ω.
        d: θ − θ*.
        side: a number of the sign of θ(0) − θ*, the side that training came from; where it is 0, no side is unseen.
        factor: a.
        epsilon: ε, what holds weights of no importance on the unseen side.
    """
    return torch.where(d * side < 0, (factor - 1) * omega + epsilon, 0.0)


def asymmetric_loss(omega: Tensor, d: Tensor, side: Tensor, factor: float, epsilon: float = 0.0) -> Tensor:
    """Return Ωd² where training came from, and (aΩ + ε)d² on the other side; arguments as for the overestimate."""
    return (omega + overestimate(omega, d, side, factor, epsilon)) * d.square()


@dataclasses.dataclass(frozen=True)
class AsymmetricSI(PathMeasure):
    r"""ALASSO's importance: SI of the new task's loss and the old tasks' together.

    .. math:: \Omega \leftarrow \max\Bigl(\Omega,\;
        \frac{\tilde\omega + c'\,(\hat L(\theta(0)) - \hat L(\theta(T)))}{(\theta(T)-\theta(0))^2 + \xi}\Bigr),
        \qquad \tilde\omega = -\sum_t g_t\,\Delta_t

    :math:`\hat L` is the old tasks' loss as it is approximated, :math:`\Omega(\theta-\theta^*)^2` where training came
    from and :math:`a'` times that on the other side. A total is not added to: it is a loss along the last path, of all
    tasks so far. Whether training is asymmetric too is the hold's matter: ``holds=["asymmetric"]``. Park et al. 2019,
    arXiv 1908.02984.

    Args:
        damping: ξ.
        measuring_strength: c′, what the old tasks' loss counts when it is measured; the guard's own strength is c,
            which it counts in training.
        measuring_factor: a′, how many times as steep the old loss is taken to be on its unseen side when it is
            measured; the hold's own factor is a.
    """

    damping: float = 0.1
    measuring_strength: float = 1.0
    measuring_factor: float = 1.0

    choose_when: ClassVar[str] = "As SI, of many tasks: it does not add up, and holds harder on the side never seen."

    def __post_init__(self) -> None:
        expected = "a number above 0 (ξ keeps the division finite)"
        self._set("damping", number("damping", self.damping, expected, lambda given: given > 0))
        for name, least, expected in (("strength", 0, "a number not below 0"), ("factor", 1, "a number not below 1")):
            setting = f"measuring_{name}"
            given = number(setting, getattr(self, setting), expected, lambda value, least=least: value >= least)  # type: ignore[misc]
            self._set(setting, given)

    @property
    def name(self) -> str:
        return "ALASSO"

    @property
    def needs(self) -> Needs:
        return Needs(gradient=True, step=True)

    @property
    def running(self) -> Mapping[str, Literal["task", "lasting"]]:
        """The path integral ω̃; and Ω so far, of the sign of the way that weights last went."""
        return {"path": "task", "signed": "lasting"}

    @property
    def total(self) -> Literal["add", "replace", "average"]:
        """A new one each time, in which the old one is."""
        return "replace"

    def update_(self, states: States, seen: Seen) -> None:
        """Add this step's gradient times Δ."""
        assert seen.step is not None
        add_to_path_(states["path"], seen.gradient, seen.step)

    def importance(self, states: States, displacement: Tensor, steps: int) -> Tensor:
        """Return it for a parameter that nothing held: the first task's, which is SI's."""
        return rescaled(states["path"], displacement, self.damping).clamp(min=0)

    def finish(self, task: TaskRecord) -> Finished:
        """Return Ω of all tasks so far, and the same with the sides that they were seen from."""
        found, signed = {}, {}
        for name, parameter in task.parameters.items():
            states, way, anchor = task.states(name), task.displacement(name), task.anchor(name)
            if states is None:
                found[name] = signed[name] = torch.zeros_like(parameter)
                continue
            if anchor is None:
                found[name] = self.importance(states, way, task.steps(name))
            else:
                found[name] = self._with_old_tasks(states, way, parameter.to(way.dtype) - anchor)
            # A weight that has not moved is still seen from where it was.
            sign = torch.where(way == 0, states["signed"].sign(), way.sign())
            signed[name] = torch.where(sign < 0, -found[name], found[name])
        return Finished(found, {"signed": signed})

    def _with_old_tasks(self, states: States, way: Tensor, d: Tensor) -> Tensor:
        """Return Ω, given how far weights went in the task and where they are from the anchor."""
        before, side = states["signed"].abs(), -states["signed"]
        at_start, at_end = (asymmetric_loss(before, x, side, self.measuring_factor) for x in (d - way, d))
        lowered = states["path"] + self.measuring_strength * (at_start - at_end)
        return torch.maximum(before, rescaled(lowered, way, self.damping))
