"""What a training loop tells at every step, so that a guard consolidates without being told where tasks end."""

import operator
from collections.abc import Callable, Mapping
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor

from anchorhold.engine.batches import Forward, call_model
from anchorhold.engine.conventions import BatchReader
from anchorhold.errors import ConfigurationError, StateError, shortened
from anchorhold.guard import Guard, TaskImportance
from anchorhold.holds.of_batches.old_model import evaluated
from anchorhold.settings import whole_number
from anchorhold.task_free.hard_samples import HardSamples, as_batches, sample_losses
from anchorhold.task_free.plateaus import Plateaus


class TaskFree:
    """Consolidates by itself: after a plateau of the loss that follows a peak, or every so many steps.

    >>> guard = Guard(model, MAS(average=True), strength=10.0, from_scratch=True)
    >>> guard.attach(optimizer)
    >>> task_free = TaskFree(guard)
    >>> for x, y in stream:
    ...     loss = train_step(x, y)
    ...     task_free.step(loss, (x, y))

    Importance is measured on the hardest of recent samples. With ``average=True`` in the measure the total is a running
    mean over consolidations, and does not grow with their number; without it an exchange rate counts every one of them
    anew, whether or not they were measured on the same samples. Aljundi, Kelchtermans and Tuytelaars 2019, "Task-Free
    Continual Learning", arXiv 1812.03596.

    Args:
        guard: the Guard, attached by whoever trains.
        every: consolidate after every so many steps instead, whatever the loss.
        plateaus: when the loss has settled; its thresholds are in the unit of the loss that is given.
        hard: how many samples importance is measured on.
        recent: how many of the last batches they are chosen from, beside the hard ones of the last time.
        forward: how the model is called, as for :meth:`~anchorhold.Guard.consolidate`.
        losses: ``losses(outputs, targets)`` returns the loss of each sample, ``[N]``, by which hard ones are chosen; by
            default the cross-entropy of labels, or the squared error.
    """

    def __init__(
        self,
        guard: Guard,
        *,
        every: int | None = None,
        plateaus: Plateaus | None = None,
        hard: int = 64,
        recent: int = 4,
        forward: Forward | None = None,
        losses: Callable[[Tensor, Tensor], Tensor] | None = None,
    ) -> None:
        if not isinstance(guard, Guard):
            raise ConfigurationError(f"guard={type(guard).__name__}: expected a Guard.")
        if every is not None and plateaus is not None:
            raise ConfigurationError(
                f"every={every!r} and plateaus: expected one of both, a number of steps or when the loss has settled."
            )
        if plateaus is not None and not isinstance(plateaus, Plateaus):
            raise ConfigurationError(f"plateaus={plateaus!r}: expected Plateaus(window, mean, variance).")
        if losses is not None and not callable(losses):
            raise ConfigurationError(
                f"losses={shortened(losses)}: expected a function losses(outputs, targets) that returns the loss of "
                "each sample, [N]."
            )
        self.guard = guard
        least = "a whole number of at least 1, or None for plateaus"
        self.every = None if every is None else whole_number("every", every, least, least=1)
        self.plateaus = plateaus or Plateaus()
        self.samples = HardSamples(hard, recent)
        self.forward = forward
        self.losses = losses or sample_losses
        self.steps = 0
        """How many steps it was told of."""
        self.consolidated: list[int] = []
        """After how many of them it has consolidated."""

    def __repr__(self) -> str:
        when = f"every {self.every} steps" if self.every is not None else repr(self.plateaus)
        after = ", ".join(map(str, self.consolidated[-5:])) if self.consolidated else "none"
        earlier = f"{len(self.consolidated) - 5} earlier ones, " if self.consolidated[5:] else ""
        return f"TaskFree: {when}; {self.steps} steps seen, consolidated after {earlier}{after}"

    def step(self, loss: Tensor | float, batch: Any = None) -> dict[str, TaskImportance] | None:
        """Tell of a step that was taken, and consolidate if it is time to.

        Call it after ``optimizer.step()``. With several processes, each of them calls it, with its own loss and batch.

        Args:
            loss: the task's own, without any penalty: one number, or one for each sample.
            batch: the step's batch, as for :meth:`~anchorhold.Guard.consolidate`; kept until others follow it.

        Returns:
            What :meth:`~anchorhold.Guard.consolidate` returned, ``None`` if it was not time.
        """
        if isinstance(loss, Tensor):
            loss = float(loss.detach().float().mean())
        elif isinstance(loss, bool) or not isinstance(loss, int | float):
            raise ConfigurationError(f"A loss of type {type(loss).__name__}; expected a tensor or a number.")
        value, group = float(loss), self.guard.options.group
        if group is not None:
            # By the mean of all processes' losses, all of them consolidate at the same step.
            total = torch.tensor(value, device=next(p.device for p in self.guard.model.parameters()))
            torch.distributed.all_reduce(total, group=group)
            value = float(total) / torch.distributed.get_world_size(group)
        if batch is not None:
            self.samples.take(batch)
        self.steps += 1
        before = self.plateaus.peak, self.plateaus.last
        is_time = self.plateaus.is_reached(value) if self.every is None else self.steps % self.every == 0
        if not is_time:
            return None
        try:
            return self.consolidate()
        except BaseException:
            self.plateaus.peak, self.plateaus.last = before  # so that the next step of this plateau tries again
            raise

    def consolidate(self) -> dict[str, TaskImportance]:
        """Consolidate now, on the samples that it has: at the end of a stream, for instance."""
        measures, holds = self.guard.measures.values(), self.guard.options.holds
        looking = any(measure.needs.data for measure in measures) or any(hold.takes_batches for hold in holds)
        if looking or self.guard.options.gradient_term or self.samples.recent:
            hardest = self.samples.hardest(self._losses)
            found = self.guard.consolidate(as_batches(hardest), forward=self.forward)
            self.samples.keep(hardest)
        else:
            found = self.guard.consolidate(forward=self.forward)
        self.consolidated.append(self.steps)
        return found

    def _losses(self, batch: Any) -> Tensor | None:
        """Return the loss of each sample of a batch, as the model is now."""
        model = self.guard.model
        device = next((p.device for p in model.parameters()), torch.device("cpu"))
        read = BatchReader(device, model).read(batch)
        with evaluated(model), torch.no_grad():
            outputs = self.forward(model, read.inputs) if self.forward else call_model(model, read.inputs)
            targets = read.labels_for(outputs)
            losses = None if targets is None else self.losses(outputs, targets)
        if losses is not None and (not isinstance(losses, Tensor) or losses.shape != (read.size,)):
            shape = f"shape {tuple(losses.shape)}" if isinstance(losses, Tensor) else f"a {type(losses).__name__}"
            raise ConfigurationError(
                f"losses(outputs, targets) returned {shape} for {read.size} samples; expected one number for each in a "
                "tensor, as reduction='none' gives."
            )
        return losses

    def state_dict(self) -> dict[str, Any]:
        """Return where it is at, as plain values, without the samples: those are training data."""
        return {"steps": self.steps, "consolidated": list(self.consolidated), "plateaus": self.plateaus.state_dict()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from there; samples come with the steps that follow."""
        try:
            steps, consolidated, plateaus = (
                operator.index(state["steps"]),
                list(map(operator.index, state["consolidated"])),
                state["plateaus"],
            )
        except (KeyError, TypeError, ValueError) as error:
            raise StateError(f"This is no state of TaskFree ({type(error).__name__}: {error}).") from error
        if any(later < earlier for earlier, later in pairwise([0, *consolidated, steps])):
            raise StateError(
                f"This state of TaskFree has seen {steps} steps, and has consolidated after {shortened(consolidated)}; "
                "expected numbers from 0 to that of its steps, none before an earlier one. It is damaged, or was "
                "changed by hand: use another copy."
            )
        self.plateaus.load_state_dict(plateaus)
        self.steps, self.consolidated = steps, consolidated
