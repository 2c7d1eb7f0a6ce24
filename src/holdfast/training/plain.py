"""Learning a sequence of tasks, in a loop that anyone can read.

Everything fast is tested against this. A run can stop after any step: :meth:`PlainRun.state` holds all of it, and a run
that takes over a state goes on exactly.
"""

import copy
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from holdfast.consolidation import Consolidator
from holdfast.errors import NotFiniteError
from holdfast.importance.measures import Measure, PathMeasure
from holdfast.models import MultiHead, give_generator, initialise
from holdfast.scenarios import Samples, Scenario
from holdfast.seeding import generator_for
from holdfast.training.order import epoch_order, second_order, steps_per_epoch
from holdfast.training.settings import Settings

EVALUATION_BATCH = 1000


@dataclass(frozen=True)
class Progress:
    """Where a run stands: told after every epoch and every task."""

    task: int
    epoch: int
    epochs: int
    steps: int
    seconds: float
    accuracies: tuple[float, ...] | None
    """The accuracy on every task, once a task has been learned."""


class PlainRun:
    """One run: a network, a scenario and a measure that protects what was learned."""

    def __init__(
        self,
        scenario: Scenario,
        model: MultiHead,
        measure: Measure,
        strength: float,
        settings: Settings,
        *,
        seed: int,
        watch: Sequence[Measure] = (),
        device: torch.device | str = "cpu",
        judge_by: str = "test",
    ) -> None:
        self.scenario = scenario
        self.settings = settings
        self.seed = seed
        self.device = torch.device(device)
        self.judge_by = judge_by
        self.model = model.to(self.device)
        self.model.initialise(generator_for(seed, "weights", 0))
        # A head that belongs to one task is never protected; one that all share is a layer like the others.
        protect = "body.*" if scenario.heads > 1 else None
        self.guard = Consolidator(self.model, measure, strength, protect, watch=watch)
        self.drops = any(isinstance(module, nn.Dropout) and module.p > 0 for module in self.model.modules())
        paths = [m for m in self.guard.measures.values() if isinstance(m, PathMeasure)]
        self.measures_path = bool(paths)
        self.needs_second_batch = any(m.needs_independent_gradient for m in paths)
        self.task = 0
        self.step = 0
        self.matrix: list[list[float]] = []
        self.untrained = self.accuracies()
        self._dropout = generator_for(seed, "dropout", 0, device=self.device)
        self._begin_task()

    def learn(self) -> Iterator[Progress]:
        """Learn all tasks that are left, telling of each epoch and each task."""
        while self.task < len(self.scenario):
            yield from self.learn_task()

    def learn_task(self) -> Iterator[Progress]:
        """Learn the current task to its end, and measure what it was worth."""
        samples = self.scenario.tasks[self.task].train.to(self.device)
        epochs = self.settings.epochs_of(self.task)
        per_epoch = steps_per_epoch(len(samples), self.settings.batch_size)
        while self.step < epochs * per_epoch:
            epoch, first = divmod(self.step, per_epoch)
            started = time.perf_counter()
            for chosen, second in zip(*self._orders(len(samples), epoch), strict=True):
                if first:  # this step was taken before the run stopped
                    first -= 1
                    continue
                self._take_step(samples, chosen, second)
            yield Progress(self.task, epoch, epochs, per_epoch, time.perf_counter() - started, None)
        self.guard.consolidate(self._measured(samples), forward=self._forward)
        row = self.accuracies()
        self.matrix.append(row)
        yield Progress(self.task, epochs, epochs, per_epoch, 0.0, tuple(row))
        self.task += 1
        if self.task < len(self.scenario):
            self._begin_task()

    def accuracies(self) -> list[float]:
        """Return the accuracy on every task, on the samples that the run is judged by."""
        self.model.eval()
        found = []
        with torch.no_grad():
            for task in self.scenario.tasks:
                samples: Samples = getattr(task, self.judge_by).to(self.device)
                right = sum(
                    int((self.model(x, task.head).argmax(1) == y).sum().item())
                    for x, y in zip(samples.x.split(EVALUATION_BATCH), samples.y.split(EVALUATION_BATCH), strict=True)
                )
                found.append(right / len(samples))
        return found

    def state(self) -> dict[str, Any]:
        """Return everything needed to go on exactly."""
        return {
            "task": self.task,
            "step": self.step,
            "matrix": copy.deepcopy(self.matrix),
            "model": {name: tensor.clone() for name, tensor in self.model.state_dict().items()},
            "optimizer": copy.deepcopy(self.optimizer.state_dict()),
            "guard": copy.deepcopy(self.guard.state_dict()),
            "dropout": self._dropout.get_state(),
        }

    def load_state(self, state: dict[str, Any]) -> None:
        """Go on from a state."""
        self.task, self.step, self.matrix = state["task"], state["step"], copy.deepcopy(state["matrix"])
        self.model.load_state_dict(state["model"])
        self._make_optimizer()
        self.optimizer.load_state_dict(state["optimizer"])
        self.guard.load_state_dict(state["guard"])
        self._dropout.set_state(state["dropout"])

    def _begin_task(self) -> None:
        self.step = 0
        if self.task and self.settings.reinitialise:
            whole = self.scenario.heads == 1
            drawn = generator_for(self.seed, "weights", self.task)
            initialise(self.model if whole else self.model.body, self.model.bias, drawn)
        self._make_optimizer()

    def _make_optimizer(self) -> None:
        self.guard.detach()
        self.optimizer = self.settings.make_optimizer(self.model.parameters())
        self.guard.attach(self.optimizer)
        give_generator(self.model, self._dropout)

    def _orders(self, samples: int, epoch: int) -> tuple[Tensor, Tensor]:
        place = {"seed": self.seed, "task": self.task, "epoch": epoch}
        batch_size = self.settings.batch_size
        return epoch_order(samples, batch_size, **place), second_order(samples, batch_size, **place)

    def _take_step(self, samples: Samples, chosen: Tensor, second: Tensor) -> None:
        self.optimizer.zero_grad()
        # Importance is measured with the gradient of the task's loss without dropout, at the weights before the step.
        self.model.eval()
        if self.measures_path and self.drops:
            self.guard.observe(self._loss(samples, chosen))
        if self.needs_second_batch:
            self.guard.observe_independent(self._loss(samples, second), samples=len(second))
        self.model.train()
        loss = self._loss(samples, chosen)
        if not bool(loss.detach().isfinite()):
            raise NotFiniteError(
                f"The loss is {loss.item()} at step {self.step + 1} of task {self.task + 1}: training has diverged. "
                "Try a smaller learning rate or strength."
            )
        loss.backward()
        self.optimizer.step()
        self.step += 1

    def _loss(self, samples: Samples, chosen: Tensor) -> Tensor:
        chosen = chosen.to(self.device)
        return F.cross_entropy(self._forward(self.model, samples.x[chosen]), samples.y[chosen])

    def _forward(self, model: nn.Module, x: Tensor) -> Tensor:
        logits: Tensor = model(x, self.scenario.tasks[self.task].head)
        return logits

    def _measured(self, samples: Samples) -> list[tuple[Tensor, Tensor]]:
        """Return the samples that measures after training look at: random ones, the same for all measures."""
        drawn = torch.randperm(len(samples), generator=generator_for(self.seed, "measured", self.task))
        chosen = drawn[: self.settings.samples].to(self.device)
        return list(zip(samples.x[chosen].split(500), samples.y[chosen].split(500), strict=True))
