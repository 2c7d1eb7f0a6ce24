r"""RWalk: what a weight gained for the way that it made the predictions go, and the Fisher information where it is.

Chaudhry, Dokania, Ajanthan and Torr 2018, "Riemannian Walk for Incremental Learning" (arXiv 1801.10112).
"""

import dataclasses
from collections.abc import Mapping
from typing import ClassVar, Literal, get_args

import torch
from torch import Tensor

from anchorhold.measures.base import Finished, Needs, PathMeasure, Seen, States, TaskRecord
from anchorhold.measures.recurrences import add_to_path_, distance_score
from anchorhold.settings import choice, number, whole_number

FisherOf = Literal["samples", "batch"]


@dataclasses.dataclass(frozen=True)
class RWalk(PathMeasure):
    r"""A running Fisher information and a score of the path, each scaled to at most 1 over the whole network.

    .. math::
        F \leftarrow a\,\hat F + (1-a)\,F, \qquad
        s = \max\Bigl(0, \sum_{\text{intervals}} \frac{-\sum_t g_t\,\Delta_t}{\tfrac12 F\,\Delta\theta^2 + \epsilon}\Bigr),
        \qquad \omega = \frac{F}{\max F} + \frac{\bar s}{\max \bar s}

    :math:`\hat F` is the mean of the squared gradients of a step's samples, F goes on from task to task, Δθ is the way
    of an interval of some steps, and :math:`\bar s \leftarrow (\bar s + s)/2` from the second task on. Both parts
    replace those of the tasks before: totals are not added. Chaudhry et al. 2018, arXiv 1801.10112.

    Args:
        every: how many steps an interval has; a shorter one at a task's end counts too.
        alpha: a, the weight of the newest batch in F.
        epsilon: ε, which keeps the score finite. The paper names none; its authors' code has 0.001.
        fisher: ``"samples"``, the paper's, for which ``gradients.samples`` has to be called before the first step of
            every interval, or before any more; ``"batch"``, the square of the step's own gradient, which is another
            thing and costs nothing.
    """  # noqa: E501 (a formula)

    every: int = 10
    alpha: float = 0.9
    epsilon: float = 1e-3
    fisher: FisherOf = "samples"

    counts_on_device: ClassVar[bool] = True
    choose_when: ClassVar[str] = "One pass over the data, small batches, and a strength that need not fall with tasks."

    def __post_init__(self) -> None:
        self._set("every", whole_number("every", self.every, "a whole number of at least 1", least=1))
        self._set("alpha", number("alpha", self.alpha, "a number above 0, up to 1", lambda given: 0 < given <= 1))
        expected = "a number above 0 (ε keeps the score finite)"
        self._set("epsilon", number("epsilon", self.epsilon, expected, lambda given: given > 0))
        choice("fisher", self.fisher, get_args(FisherOf))

    @property
    def name(self) -> str:
        """RWalk, or what it becomes with the batch's gradient."""
        return "RWalk" if self.fisher == "samples" else "RWalk-batch"

    @property
    def needs(self) -> Needs:
        """The step's gradient and the step, their number, and what its samples' gradients are."""
        return Needs(gradient=True, step=True, number=True, squares=self.fisher == "samples")

    @property
    def running(self) -> Mapping[str, Literal["task", "lasting"]]:
        """F; ΔL and Δθ of the current interval; s of the task, and that of all before it."""
        return {"fisher": "lasting", "gained": "task", "moved": "task", "score": "task", "past": "lasting"}

    @property
    def total(self) -> Literal["add", "replace", "average"]:
        return "replace"

    def wants_squares(self, number: int) -> bool:
        """Whether a step is the first of an interval."""
        return self.fisher == "samples" and number % self.every == 0

    def update_(self, states: States, seen: Seen) -> None:
        """Add this step, and end the interval where it is over."""
        assert seen.step is not None and seen.number is not None
        squares = seen.gradient.square() if self.fisher == "batch" else seen.squares
        if squares is not None:
            states["fisher"].lerp_(squares.to(states["fisher"].dtype), self.alpha)
        add_to_path_(states["gained"], seen.gradient, seen.step)
        states["moved"].add_(seen.step)
        over = (seen.number + 1) % self.every == 0
        if isinstance(over, Tensor) and over.device.type == "cpu":  # which nothing records
            over = bool(over)
        if isinstance(over, Tensor):  # a recorded step, which cannot go one way or the other
            states["score"].add_(torch.where(over, self._of_interval(states), 0))
            states["gained"].masked_fill_(over, 0)
            states["moved"].masked_fill_(over, 0)
        elif over:
            states["score"].add_(self._of_interval(states))
            states["gained"].zero_()
            states["moved"].zero_()

    def _of_interval(self, states: States) -> Tensor:
        return distance_score(states["gained"], states["fisher"], states["moved"], self.epsilon)

    def importance(self, states: States, displacement: Tensor, steps: int) -> Tensor:
        """Return s of the task alone, not scaled: what is scaled over the network is found at once."""
        return (states["score"] + self._of_interval(states)).clamp(min=0)

    def finish(self, task: TaskRecord) -> Finished:
        """Return both parts, scaled over all parameters, and the score that the next task is averaged with."""
        fisher, score = {}, {}
        for name, parameter in task.parameters.items():
            states = task.states(name)
            if states is None:
                fisher[name] = score[name] = torch.zeros_like(parameter)
                continue
            fisher[name], score[name] = states["fisher"], states["past"]
            if task.steps(name):
                own = self.importance(states, task.displacement(name), task.steps(name))
                score[name] = own if task.anchor(name) is None else (states["past"] + own) / 2
        largest, highest = task.largest(fisher) or 1.0, task.largest(score) or 1.0
        found = {name: fisher[name] / largest + score[name] / highest for name in fisher}
        return Finished(found, {"past": score})
