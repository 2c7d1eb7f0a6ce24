"""Learning a sequence of tasks, in a loop that anyone can read.

Everything fast is tested against this. A run can stop after any step: :meth:`PlainRun.state` holds all of it, and a run
that takes over a state goes on exactly.
"""

import contextlib
import copy
import time
from collections.abc import Iterator
from typing import Any

from torch import Tensor

from anchorhold.errors import NotFiniteError
from anchorhold.tensors.matrices import tf32_allowed
from anchorhold_lab.scenarios import Samples
from anchorhold_lab.training.learner import Learner
from anchorhold_lab.training.telling.progress import TELL_EVERY, Outcome, Progress, diverged


class PlainRun:
    """One run, one step after another."""

    def __init__(self, learner: Learner) -> None:
        self.learner = learner
        self.task = 0
        self.step = 0
        self._begin_task()

    @property
    def outcomes(self) -> list[Outcome]:
        """What came out so far."""
        return [self.learner.outcome]

    @property
    def observations(self) -> list[dict[str, dict[str, Any]]]:
        """What observers have seen so far."""
        return [self.learner.observations]

    def learn(self) -> Iterator[Progress]:
        """Learn all tasks that are left, telling of it about once a second, after each epoch and each task."""
        while self.task < len(self.learner.scenario):
            yield from self.learn_task()

    def learn_task(self) -> Iterator[Progress]:
        """Learn the current task to its end, and measure what it was worth."""
        learner, task = self.learner, self.task
        samples, wanted = learner.samples(task), set(learner.wanted_steps(task))
        steps, per_epoch = learner.task_steps(task), learner.epoch_steps(task)
        started = told = time.perf_counter()

        loss = float("nan")
        while self.step < steps:
            epoch, first = divmod(self.step, per_epoch)
            order = learner.order(task, epoch)
            second = learner.order(task, epoch, second=True) if learner.needs_second_batch else order
            for i in range(first, per_epoch):  # a run that was resumed begins within an epoch
                chosen = order[i].to(learner.device), second[i].to(learner.device)
                seen = learner.observed(task, self.step) if self.step in wanted else contextlib.nullcontext()
                with seen, tf32_allowed(learner.precision == "tf32", learner.device):  # the backward pass too
                    loss = self._take_step(samples, *chosen)
                if i + 1 == per_epoch or time.perf_counter() - told > TELL_EVERY:
                    told = time.perf_counter()
                    yield learner.progress(task, self.step, started, (loss,))
        learner.end_task(task)
        self.task += 1
        if self.task < len(learner.scenario):
            self._begin_task()
        yield learner.progress(task, steps, started, (loss,), learned=True)

    def state(self) -> dict[str, Any]:
        """Return everything needed to go on exactly."""
        optimizer = copy.deepcopy(self.optimizer.state_dict())
        return {"task": self.task, "step": self.step, "optimizer": optimizer, **self.learner.state()}

    def load_state(self, state: dict[str, Any]) -> None:
        """Go on from a state."""
        self.task, self.step = state["task"], state["step"]
        self.learner.load_state(state)
        self._make_optimizer()
        self.optimizer.load_state_dict(state["optimizer"])

    def _begin_task(self) -> None:
        self.step = 0
        self.learner.begin_task(self.task)
        self._make_optimizer()

    def _make_optimizer(self) -> None:
        learner = self.learner
        learner.guard.detach()
        trained = learner.trained(self.task, self.step)
        self.optimizer = learner.settings.make_optimizer(trained.parameters())
        if trained is learner.model:
            learner.guard.attach(self.optimizer)

    def _take_step(self, samples: Samples, chosen: Tensor, second: Tensor) -> float:
        learner, task = self.learner, self.task
        phase = learner.phase(task, self.step)
        for group in self.optimizer.param_groups if learner.settings.rate_decay != 1 else ():
            group["lr"] = learner.settings.rate(self.step - phase.begins, phase.steps)
        x, y = samples.x[chosen], samples.y[chosen]
        self.optimizer.zero_grad()
        # Importance is measured with the gradient of the task's loss without dropout, at the weights before the step.
        learner.model.eval()
        if learner.needs_own_gradient:
            seen = learner.seen_samples
            learner.guard.gradients.observe(learner.loss(x[:seen], y[:seen], task))
        if learner.needs_second_batch:
            independent = learner.loss(samples.x[second], samples.y[second], task)
            learner.guard.gradients.independent(independent, samples=len(second))
        heads = learner.heads(task, chosen)
        if learner.wants_squares(self.step):
            learner.guard.gradients.samples([(x, y)], forward=lambda model, inputs: model(inputs, heads))
        learner.trained(task, self.step).train()
        loss = learner.step_loss(x, y, task, heads, self.step)
        if not bool(loss.detach().isfinite()):
            learner.outcome.failure = diverged(loss.item(), task, self.step, samples.x)
            raise NotFiniteError(learner.outcome.failure)
        loss.backward()
        try:
            with learner.expecting_new_classes():
                self.optimizer.step()
        except NotFiniteError as error:  # a finite loss with a gradient that is not
            learner.outcome.failure = f"Task {task + 1}: {error}"
            raise NotFiniteError(learner.outcome.failure) from error
        self.step += 1
        if learner.phase(task, self.step) != phase:  # at once, so that a state that is taken here has the right one
            self._make_optimizer()
        if learner.task_free is not None:
            learner.task_free.step(loss, (x, y))
        return loss.item()
