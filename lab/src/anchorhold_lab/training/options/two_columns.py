r"""Progress & Compress: each task is learned by a column of its own, and then told to the network that is protected.

Progress: the active column learns the task, with the knowledge base, which is the run's own network, fixed beside it.
Compress: the knowledge base learns to say what the active column says of the task's inputs, while what it knew is held,

.. math:: \operatorname{KL}(p_\text{active} \,\|\, p_\text{base}) + c\sum_i F^*_i (\theta_i - \theta^*_i)^2

and then takes the task into F*. The second part is the guard's, with whatever measure it has; with online EWC it is the
method of Schwarz et al. 2018, arXiv 1805.06370.
"""

from collections.abc import Collection, Iterable
from typing import NamedTuple

import torch
from torch import Tensor

from anchorhold.errors import ConfigurationError
from anchorhold.measures import Measure
from anchorhold.seeding import generator_for
from anchorhold_lab.networks import MultiHead
from anchorhold_lab.networks.active_column import ActiveColumn


class Phase(NamedTuple):
    """A part of a task that has an optimizer of its own."""

    begins: int
    """Its first step, within the task."""
    steps: int
    compresses: bool = False
    """Whether the knowledge base is told what the active column has learned."""


class TwoColumns:
    """The active column beside a run's network.

    Args:
        base: the run's network, which is the knowledge base.
        inputs: some inputs of it.
        seed: of the run.
        reinitialise: whether the active column is drawn anew before every task but the first. It is all that is: to
            draw the knowledge base anew would be to forget.
    """

    def __init__(self, base: MultiHead, inputs: Tensor, *, seed: int, reinitialise: bool) -> None:
        self.base = base
        self.active = ActiveColumn(base, inputs)
        self._seed, self._reinitialise = seed, reinitialise
        self._draw(0)

    def begin_task(self, task: int) -> None:
        """Look at what the knowledge base knows by now, and begin anew where that was asked for."""
        self.active.borrow(self.base)
        if task and self._reinitialise:
            self._draw(task)

    def told(self, x: Tensor, head: int) -> Tensor:
        """Return what the active column says of some inputs, to be learned by the knowledge base."""
        self.active.eval()
        with torch.no_grad():
            told: Tensor = self.active(x, head)
        return told

    def _draw(self, task: int) -> None:
        self.active.initialise(generator_for(self._seed, "active column", task))


def phase_of(step: int, progress: int, compress: int) -> Phase:
    """Return the phase that a step is in, of a task that has so many steps of both."""
    if compress and step >= progress:
        return Phase(progress, compress, compresses=True)
    return Phase(0, progress)


def check_columns(compress: int, measures: Iterable[Measure], beside: Collection[object]) -> None:
    """Refuse two columns where something looks at the steps of a task, of which half are not the network's own."""
    along = [measure.name for measure in measures if measure.needs.path]
    if compress and (along or beside):
        raise ConfigurationError(
            f"compress={compress} with {', '.join([*along, *map(str, beside)])}: expected a measure that looks at data "
            "after training, such as online-EWC or EWC, no holds and no probes, since the active column's steps are "
            "none of the network's that is protected. Leave them out, or compress=0."
        )
