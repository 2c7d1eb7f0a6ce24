"""A measure of one's own: weights whose gradients agreed from step to step are important.

It has two running states, is finished over all parameters at once, and replaces the total, so that the last task's
importance counts alone. Registered, it works by name:

    anchorhold-lab run permuted-digits --measure agreement --strength 1 --with examples/extending/measure.py
"""

import dataclasses
from collections.abc import Mapping
from typing import ClassVar, Literal

from torch import Tensor

import anchorhold
from anchorhold.measures.base import Finished, Needs, Seen, States, TaskRecord


@anchorhold.register_measure("agreement")
@dataclasses.dataclass(frozen=True)
class Agreement(anchorhold.measures.PathMeasure):
    r"""The share of a gradient that does not average out, from 0 to 1 for the network as a whole.

    .. math:: \omega_i = \frac{r_i}{\max_j r_j}, \qquad r = \frac{\bar g^2}{\overline{g^2} + \varepsilon}

    Args:
        damping: ε, below which a mean square counts as none.
    """

    damping: float = 1e-8

    choose_when: ClassVar[str] = "To show how a measure is written."

    @property
    def needs(self) -> Needs:
        """The step's gradient; Δ is not asked for, so it is updated before the step."""
        return Needs(gradient=True)

    @property
    def running(self) -> Mapping[str, Literal["task", "lasting"]]:
        """Both sums start at 0 with every task."""
        return {"sum": "task", "squares": "task"}

    @property
    def total(self) -> Literal["add", "replace", "average"]:
        """The last task's alone."""
        return "replace"

    def update_(self, states: States, seen: Seen) -> None:
        """Take a step into both sums, element by element."""
        states["sum"].add_(seen.gradient)
        states["squares"].addcmul_(seen.gradient, seen.gradient)

    def importance(self, states: States, displacement: Tensor, steps: int) -> Tensor:
        """Return the agreement of one parameter's weights."""
        mean, mean_square = states["sum"] / steps, states["squares"] / steps
        return mean.square() / (mean_square + self.damping)

    def finish(self, task: TaskRecord) -> Finished:
        """Divide by the largest of all parameters, and of all processes' parts of them."""
        found = super().finish(task).importance
        largest = task.largest(found) or 1.0
        return Finished({name: omega / largest for name, omega in found.items()})
