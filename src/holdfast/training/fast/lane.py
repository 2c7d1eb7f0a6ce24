"""A lane: runs whose steps are taken together, by functions over a first dimension that counts them.

Networks of linear layers share one lane, so that their matrix products are batched. Other networks have a lane each;
on a GPU, lanes run at the same time.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from holdfast.consolidation.pieces import in_pieces
from holdfast.training.fast.batches import Batches
from holdfast.training.fast.compiling import compiled
from holdfast.training.fast.flat import Layout
from holdfast.training.fast.gradients import Gradients, GradientSource
from holdfast.training.fast.update import Kept, Update


@dataclass(frozen=True)
class Clock:
    """Counts steps on the device, since a recorded step cannot be told its number."""

    in_epoch: Tensor
    in_task: Tensor

    @staticmethod
    def on(device: torch.device) -> "Clock":
        """Return a clock at 0."""
        zero = torch.zeros(1, dtype=torch.long, device=device)
        return Clock(zero, zero.clone())

    def tick(self) -> None:
        """Count a step."""
        self.in_epoch.add_(1)
        self.in_task.add_(1)

    def tensors(self) -> list[Tensor]:
        """Return the counters."""
        return [self.in_epoch, self.in_task]


@dataclass(frozen=True)
class Schedule:
    """What each step of the lane reads and leaves: indices of samples, coefficients, losses."""

    orders: Tensor
    """The samples of each step of the epoch, ``[L, steps, B]``."""
    second_orders: Tensor | None
    """The samples of the second batches, where measures need them."""
    coefficients: Tensor
    """The optimiser's, one row for each step of the task."""
    losses: Tensor
    """The loss of each step of the epoch, ``[L, steps]``."""


class Lane:
    """L runs, step by step."""

    def __init__(
        self,
        layout: Layout,
        kept: Kept,
        hold: Tensor,
        gradients: GradientSource,
        update: Update,
        batches: Batches,
        schedule: Schedule,
        clock: Clock,
        *,
        needs_own_gradient: bool,
    ) -> None:
        """Take buffers ``[L, width]`` in ``kept``, and 2c of each run in ``hold``, ``[L, 1]``."""
        self.layout = layout
        self.kept = kept
        self.hold = hold
        self.gradients = gradients
        self.update = update
        self.batches = batches
        self.schedule = schedule
        self.clock = clock
        self.needs_own_gradient = needs_own_gradient
        device = kept.weights.device
        # On a CPU, one run's weights are updated parameter by parameter, in pieces; elsewhere in one kernel.
        self._in_pieces = device.type == "cpu" and len(hold) == 1
        self._update_joined = compiled(self._joined, device)

    def take_step(self) -> None:
        """Take one step of every run."""
        schedule, clock = self.schedule, self.clock
        x, y = self._fetch(schedule.orders)
        # Importance is measured with the gradient of the task's loss without dropout, at the weights before the step.
        measured = self.gradients(x, y, dropping=False)[0] if self.needs_own_gradient else None
        independent = None
        if schedule.second_orders is not None:
            independent, _ = self.gradients(*self._fetch(schedule.second_orders), dropping=False)
        step, losses = self.gradients(x, y, dropping=True)
        row = schedule.coefficients.index_select(0, clock.in_task)[0]
        if self._in_pieces:
            self._update_in_pieces(step, measured, independent, row)
        else:
            self._update_joined(self.kept.tensors(), step, measured, independent, row, self.hold)
        schedule.losses.index_copy_(1, clock.in_epoch, losses.unsqueeze(1).to(schedule.losses.dtype))

    def _fetch(self, orders: Tensor) -> tuple[Tensor, Tensor]:
        return self.batches.fetch(orders.index_select(1, self.clock.in_epoch).squeeze(1))

    def _joined(
        self,
        kept: Sequence[Tensor],
        step: Gradients,
        measured: Gradients | None,
        independent: Gradients | None,
        row: Tensor,
        hold: Tensor,
    ) -> None:
        """Update all weights at once. Compiled, the gradients are read where they are, not copied side by side."""
        dtype = kept[0].dtype
        flat_step = self.layout.joined(step).to(dtype)
        flat_measured = flat_step if measured is None else self.layout.joined(measured).to(dtype)
        flat_independent = None if independent is None else self.layout.joined(independent).to(dtype)
        self.update(self.kept.like(kept), flat_step, flat_measured, flat_independent, row, hold)

    def _update_in_pieces(
        self, step: Gradients, measured: Gradients | None, independent: Gradients | None, row: Tensor
    ) -> None:
        hold = self.hold[0]
        for name, place in self.layout.places.items():
            kept = [buffer[0, place.start : place.stop] for buffer in self.kept.tensors()]
            gradients = [step[name], (measured or step)[name], *([] if independent is None else [independent[name]])]
            flat = [gradient.flatten().to(kept[0].dtype) for gradient in gradients]
            for given in in_pieces([*kept, *flat]):
                pieces = [piece for piece in given if piece is not None]
                own, (g_step, g_measured, *more) = pieces[: len(kept)], pieces[len(kept) :]
                self.update(self.kept.like(own), g_step, g_measured, more[0] if more else None, row, hold)
