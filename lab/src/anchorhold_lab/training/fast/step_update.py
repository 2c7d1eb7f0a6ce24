r"""All that happens to a weight in one step: the measures see its gradient, the penalty joins, the optimizer moves it.

Written once as a function of tensors of any shape, with the formulas of the eager path (the measures' ``update_`` and
the penalty's gradient). A CPU runs it on pieces that stay in cache; on a GPU it is compiled to one kernel over the
buffer of all weights.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor

from anchorhold.holds.of_weights.quadratic import penalty_gradient, pull_implicitly_
from anchorhold.measures import PathMeasure
from anchorhold.measures.base import Seen
from anchorhold_lab.training.fast.optimizers import ElementwiseOptimizer


@dataclass(frozen=True)
class Kept:
    """What is kept about some weights; everything of one shape."""

    weights: Tensor
    """θ."""
    importance: Tensor
    """Ω."""
    anchor: Tensor
    """θ*."""
    moments: tuple[Tensor, ...]
    """What the optimizer remembers."""
    states: tuple[Tensor, ...]
    """The running states of all path measures, one measure's after another's."""

    def tensors(self) -> list[Tensor]:
        """Return them all in one list."""
        return [self.weights, self.importance, self.anchor, *self.moments, *self.states]

    @staticmethod
    def of(tensors: Sequence[Tensor], moments: int) -> "Kept":
        """Return tensors that :meth:`tensors` listed in their arrangement again."""
        weights, importance, anchor, *rest = tensors
        return Kept(weights, importance, anchor, tuple(rest[:moments]), tuple(rest[moments:]))


@dataclass(frozen=True)
class Update:
    """One step of some weights, in place."""

    optimizer: ElementwiseOptimizer
    measures: tuple[PathMeasure, ...]
    batch_size: int
    implicit: bool = False
    """Whether the penalty acts after the optimizer."""

    def __call__(
        self,
        kept: Kept,
        step: Tensor,
        measured: Tensor,
        independent: Tensor | None,
        row: Tensor,
        hold: Tensor,
        pull: Tensor | None = None,
        number: Tensor | None = None,
        squares: Tensor | None = None,
    ) -> None:
        """Take the step.

        Args:
            kept: what is kept about the weights.
            step: the gradient that makes the step, without the penalty's.
            measured: g, the gradient that measures see; the same tensor unless there is dropout.
            independent: g′, where some measure needs it.
            row: the optimizer's coefficients.
            hold: 2c, of a shape that broadcasts.
            pull: Q(θ − θ*) of weights that are held by more than an importance each; Ω is 0 there.
            number: how many steps the task has taken before this one.
            squares: the mean of the squared gradients of the step's samples, at steps that some measure wants it for.
        """
        rest = iter(kept.states)
        measures = [(measure, {state: next(rest) for state in measure.running}) for measure in self.measures]
        for measure, states in measures:
            if not measure.needs.step:
                measure.update_(states, Seen(measured, independent, None, self.batch_size, number, squares))
        before = kept.weights.clone()
        held = step if self.implicit else step + penalty_gradient(before, kept.importance, kept.anchor, hold)
        if pull is not None:
            held = held + hold * pull
        self.optimizer.step_(kept.weights, held, kept.moments, row)
        moved = kept.weights - before
        for measure, states in measures:
            if measure.needs.step:
                measure.update_(states, Seen(measured, independent, moved, self.batch_size, number, squares))
        if self.implicit:
            reach = self.optimizer.reach(kept.moments, row)
            pull_implicitly_(kept.weights, kept.importance, kept.anchor, hold, reach)
