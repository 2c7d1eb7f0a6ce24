"""A lane: runs whose steps are taken together, by functions over a first dimension that counts them.

Networks of linear layers share one lane, so that their matrix products are batched. Other networks have a lane each;
on a GPU, lanes run at the same time.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from anchorhold.tensors.pieces import in_pieces
from anchorhold_lab.training.fast.flat_layout import FlatLayout
from anchorhold_lab.training.fast.recording import compiled
from anchorhold_lab.training.fast.sample_tables import Batches, Clock
from anchorhold_lab.training.fast.step_gradients import Gradients, GradientSource
from anchorhold_lab.training.fast.step_update import Kept, Update


@dataclass(frozen=True)
class Schedule:
    """What each step of the lane reads and leaves: indices of samples, coefficients, losses."""

    orders: Tensor
    """The samples of each step of the epoch, ``[L, steps, B]``."""
    second_orders: Tensor | None
    """The samples of the second batches, where measures need them."""
    coefficients: Tensor
    """The optimizer's, one row for each step of the task."""
    losses: Tensor
    """The loss of each step of the epoch, ``[L, steps]``."""


def joined_update(layout: FlatLayout, update: Update, device: torch.device) -> Callable[..., None]:
    """Return the update of all weights of a lane at once, compiled to one kernel where that helps.

    The gradients are then read where the backward pass left them, not copied side by side.
    """

    def run(
        kept: list[Tensor],
        moments: int,
        step: Gradients,
        measured: Gradients | None,
        independent: Gradients | None,
        coefficients: Tensor,
        number: Tensor,
        hold: Tensor,
        pull: Gradients | None,
        squares: Gradients | None,
    ) -> None:
        row = coefficients.index_select(0, number)[0]
        dtype = kept[0].dtype
        flat_step = layout.joined(step).to(dtype)
        flat_measured = flat_step if measured is None else layout.joined(measured).to(dtype)
        flat_independent = None if independent is None else layout.joined(independent).to(dtype)
        flat_pull = None if pull is None else layout.joined(pull)
        flat_squares = None if squares is None else layout.joined(squares).to(dtype)
        found = flat_step, flat_measured, flat_independent, row, hold, flat_pull, number, flat_squares
        update(Kept.of(kept, moments), *found)

    return compiled(run, device)


class Lane:
    """L runs, step by step."""

    def __init__(
        self,
        rows: slice,
        layout: FlatLayout,
        kept: Kept,
        hold: Tensor,
        gradients: GradientSource,
        update: Update,
        update_joined: Callable[..., None],
        batches: Batches,
        schedule: Schedule,
        clock: Clock,
        *,
        needs_own_gradient: bool,
        seen_samples: int,
    ) -> None:
        """Take buffers ``[L, width]`` in ``kept``, 2c of each run in ``hold``, ``[L, 1]``, and which runs they are."""
        self.rows = rows
        self.layout = layout
        self.kept = kept
        self.hold = hold
        self.gradients = gradients
        self.update = update
        self.batches = batches
        self.schedule = schedule
        self.clock = clock
        self.needs_own_gradient = needs_own_gradient
        self.seen_samples = seen_samples
        # On a CPU, one run's weights are updated parameter by parameter, in pieces; elsewhere in one kernel.
        self._in_pieces = kept.weights.device.type == "cpu" and len(hold) == 1
        self._update_joined = update_joined

    def take_step(self, pulls: Callable[[], Gradients] | None, *, squared: bool = False) -> None:
        """Take one step of every run.

        Args:
            pulls: returns Q(θ − θ*) of all lanes' runs, where a form has more than one importance a weight.
            squared: whether some measure wants the squared gradients of the step's samples.
        """
        schedule, now, number = self.schedule, self.clock.in_epoch, self.clock.in_task
        # Importance is measured with the gradient of the task's loss without dropout, at the weights before the step.
        measured = None
        if self.needs_own_gradient:
            measured = self.gradients(schedule.orders[..., : self.seen_samples], now, None, dropping=False)
        independent = None
        if schedule.second_orders is not None:
            independent = self.gradients(schedule.second_orders, now, None, dropping=False)
        squares = self.gradients.squares(schedule.orders, now) if squared else None
        step = self.gradients(schedule.orders, now, schedule.losses, dropping=True)
        pull = None if pulls is None else {name: found[self.rows] for name, found in pulls().items()}
        if self._in_pieces:
            row = schedule.coefficients.index_select(0, number)[0]
            others = {"independent": independent, "pull": pull, "squares": squares}
            self._update_in_pieces(step, measured, others, row, number)
        else:
            given = self.kept.tensors(), len(self.kept.moments), step, measured, independent
            self._update_joined(*given, schedule.coefficients, number, self.hold, pull, squares)

    def _update_in_pieces(
        self,
        step: Gradients,
        measured: Gradients | None,
        others: Mapping[str, Gradients | None],
        row: Tensor,
        number: Tensor,
    ) -> None:
        """Take the step of one run; what it is given beside gradients goes by the names that the update has for it."""
        hold = self.hold[0]
        for name, place in self.layout.places.items():
            kept = [buffer[0, place.start : place.stop] for buffer in self.kept.tensors()]
            beside = {kind: given[name] for kind, given in others.items() if given and name in given}
            found = [step[name], (measured or step)[name], *beside.values()]
            flat = [gradient.flatten().to(kept[0].dtype) for gradient in found]
            for pieces in in_pieces([*kept, *flat]):
                own, (g_step, g_measured, *more) = pieces[: len(kept)], pieces[len(kept) :]
                rest = {"independent": None, **dict(zip(beside, more, strict=True))}
                kept_of_piece = Kept.of(own, len(self.kept.moments))
                self.update(kept_of_piece, g_step, g_measured, row=row, hold=hold, number=number, **rest)
