"""The fast engine: several runs of one kind, trained side by side."""

import bisect
import contextlib
import itertools
import math
import time
from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor

from anchorhold.errors import ConfigurationError, NotFiniteError
from anchorhold.forms import DiagonalMatrix
from anchorhold.guard import PathRecord
from anchorhold.tensors.matrices import tf32_allowed
from anchorhold_lab.training.fast.dropout_masks import Masks
from anchorhold_lab.training.fast.flat_layout import FlatLayout
from anchorhold_lab.training.fast.lanes import Lane, Schedule, joined_update
from anchorhold_lab.training.fast.layer_holds import MULTIPLE, LayerHolds
from anchorhold_lab.training.fast.optimizers import optimizer_of
from anchorhold_lab.training.fast.recording import Recording, beside, in_parallel
from anchorhold_lab.training.fast.sample_tables import Batches, Clock
from anchorhold_lab.training.fast.shared_steps import check_alike
from anchorhold_lab.training.fast.step_gradients import (
    Formula,
    FunctionalGradients,
    GradientSource,
    ModuleGradients,
    is_a_formula,
    is_all_linear,
    trained_parameters,
)
from anchorhold_lab.training.fast.step_update import Kept, Update
from anchorhold_lab.training.learner import Learner
from anchorhold_lab.training.telling.progress import TELL_EVERY, Outcome, Progress, diverged


class FastRuns:
    """Runs that differ in seed and strength alone, each exactly as it would be by itself, up to rounding.

    Args:
        learners: the runs.
        batched: whether all runs' matrix products are batched; by default on a GPU, for networks of linear layers.
    """

    def __init__(self, learners: Sequence[Learner], *, batched: bool | None = None) -> None:
        check_alike(learners)
        self.learners = list(learners)
        self.task = 0
        self.step = 0
        self.preparing_seconds = 0.0
        """How long compiling and recording took."""
        first = learners[0]
        self._first, self._device = first, first.device
        as_formula = is_a_formula(first) and (self._device.type == "cuda" or batched is True)
        if batched and not (as_formula and is_all_linear(first.model)):
            raise ConfigurationError(
                "batched=True for a network that has other weights than those of linear layers, frozen or tied ones, "
                "buffers, or layers that behave differently in training; leave it out, and each run has its own "
                "products."
            )
        together = as_formula and is_all_linear(first.model) and batched is not False
        self._layout = FlatLayout({name: p.shape for name, p in trained_parameters(first.model, 0).items()})
        self._make_buffers()
        runs = len(learners)
        rows = [slice(0, runs)] if together else [slice(i, i + 1) for i in range(runs)]
        # Compiled once for all lanes.
        self._formula = None
        if as_formula:
            self._formula = Formula(first, runs=runs if together else 1)
        self._update_joined = joined_update(self._layout, self._update, self._device)
        self._lanes = [self._make_lane(span) for span in rows]
        self._layer_holds = self._make_layer_holds()
        self._recordings: dict[bool, Recording] = {}
        """Of steps without the squared gradients of samples, and with them where measures want them."""
        self._recorded_holding = False
        self._pace = TELL_EVERY / 50
        """Seconds a step; a guess before the first."""
        self._begin_task()

    @property
    def outcomes(self) -> list[Outcome]:
        """What came out so far, for each run."""
        return [learner.outcome for learner in self.learners]

    @property
    def observations(self) -> list[dict[str, dict[str, Any]]]:
        """What observers have seen so far, for each run."""
        return [learner.observations for learner in self.learners]

    def learn(self) -> Iterator[Progress]:
        """Learn all tasks that are left, telling of it about once a second, after each epoch and each task."""
        while self.task < len(self._first.scenario):
            yield from self.learn_task()

    def learn_task(self) -> Iterator[Progress]:
        """Learn the current task to its end, and measure what it was worth."""
        self._prepare()
        first, task = self._first, self.task
        steps, per_epoch = first.task_steps(task), first.epoch_steps(task)
        started = time.perf_counter()
        losses: tuple[float, ...] = ()
        wanted = sorted({step for learner in self.learners for step in learner.wanted_steps(task)})
        orders = self._orders(self.step // per_epoch)
        while self.step < steps:
            epoch, done = divmod(self.step, per_epoch)
            self._use_orders(orders, done)
            while done < per_epoch:
                began = time.perf_counter()
                taken = self._take_steps(per_epoch - done, wanted)
                if done + taken == per_epoch:  # what comes next is drawn while the device is at work
                    if self.step + taken < steps:
                        orders = self._orders(epoch + 1)
                    else:
                        self._draw_ahead()
                losses = self._check_losses(done, taken)
                self._pace = (time.perf_counter() - began) / taken
                done += taken
                self.step += taken
                yield first.progress(task, self.step, started, losses, together=self.learners)
        self._end_task()
        self.task += 1
        if self.task < len(first.scenario):
            self._begin_task()
            if self.task == 1 and first.guard.options.batch_norm is not None:
                self._recordings = {}  # what was recorded lets statistics follow the batches
        else:
            self._let_go()
        yield first.progress(task, steps, started, losses, learned=True, together=self.learners)

    def state(self) -> dict[str, Any]:
        """Return everything needed to go on exactly, one entry a run."""
        if self.task < len(self._first.scenario):
            self._report_paths()
        runs = []
        for i, learner in enumerate(self.learners):
            moments = {
                name: {key: value.clone() for key, value in self._layout.views(rows[i]).items()}
                for name, rows in zip(self._update.optimizer.moments, self._kept.moments, strict=True)
            }
            runs.append({"optimizer": moments, **learner.state()})
        return {"task": self.task, "step": self.step, "runs": runs}

    def load_state(self, state: dict[str, Any]) -> None:
        """Go on from a state."""
        if len(state["runs"]) != len(self.learners):
            raise ConfigurationError(
                f"A state of {len(state['runs'])} runs for {len(self.learners)}; expected one of as many."
            )
        self.task, self.step = state["task"], state["step"]
        for i, (learner, own) in enumerate(zip(self.learners, state["runs"], strict=True)):
            learner.load_state(own)
            self._bind(i)
            record = learner.guard.gradients.path
            self._layout.fill(self._start[i], record.start)
            for rows, (label, running) in zip(self._kept.states, self._state_names, strict=True):
                self._layout.fill(rows[i], record.running[label][running])
            for rows, name in zip(self._kept.moments, self._update.optimizer.moments, strict=True):
                self._layout.fill(rows[i], own["optimizer"][name])
            self._hold(i)
        if self.task < len(self._first.scenario):
            self._fill_task()

    # Buffers and lanes

    def _make_buffers(self) -> None:
        first, runs = self._first, len(self.learners)
        self._state_names = [(label, state) for label, m in first.path_measures.items() for state in m.running]
        settings, scenario = first.settings, first.scenario
        dtype = next(first.model.parameters()).dtype
        optimizer = optimizer_of(settings)

        def rows() -> Tensor:
            return torch.zeros(runs, self._layout.width, dtype=dtype, device=self._device)

        moments = tuple(rows() for _ in optimizer.moments)
        states = tuple(rows() for _ in self._state_names)
        self._kept = Kept(rows(), rows(), rows(), moments, states)
        self._start = rows()
        implicit = bool(first.guard.options.implicit)
        self._update = Update(optimizer, tuple(first.path_measures.values()), first.seen_samples, implicit)
        self._strengths = torch.zeros(runs, 1, dtype=dtype, device=self._device)
        tasks = range(len(scenario))
        coefficients = optimizer.coefficients(max(first.task_steps(task) for task in tasks))
        longest = max(first.epoch_steps(task) for task in tasks)
        shape = (runs, longest, settings.batch_size)
        orders = torch.zeros(shape, dtype=torch.long, device=self._device)
        self._schedule = Schedule(
            orders,
            torch.zeros_like(orders[..., : first.seen_samples]) if first.needs_second_batch else None,
            coefficients.to(self._device, dtype),
            torch.zeros(runs, longest, dtype=dtype, device=self._device),
        )
        self._clock = Clock.on(self._device)

    def _make_layer_holds(self) -> LayerHolds | None:
        """Return the holds of layers' matrices, where the form has them."""
        guard = self._first.guard
        if guard.options.form.elementwise:
            return None
        blocks = guard.options.form.blocks(self._first.model, guard.parameters)
        multiple = MULTIPLE if self._device.type == "cuda" else 1
        kept, implicit = self._kept, self._update.implicit
        return LayerHolds(
            guard.options.form, blocks, self._layout, kept.weights, kept.anchor, multiple, implicit=implicit
        )

    def _make_lane(self, span: slice) -> Lane:
        first, learners, schedule = self._first, self.learners[span], self._schedule
        x = first.few_inputs()  # as tasks give it, which may not be as it is stored
        half = first.precision == "bf16" and self._formula is not None and x.is_floating_point()
        batches = Batches(
            len(learners),
            max(len(task.stored_train) for task in first.scenario.tasks),
            x.shape[1:],
            torch.bfloat16 if half else x.dtype,
            self._device,
            channels_last=self._formula is not None,
        )
        kept = Kept.of([buffer[span] for buffer in self._kept.tensors()], len(self._kept.moments))
        return Lane(
            span,
            self._layout,
            kept,
            self._strengths[span],
            self._gradient_source(learners, kept.weights, batches),
            self._update,
            self._update_joined,
            batches,
            Schedule(
                schedule.orders[span],
                None if schedule.second_orders is None else schedule.second_orders[span],
                schedule.coefficients,
                schedule.losses[span],
            ),
            self._clock,
            needs_own_gradient=first.needs_own_gradient,
            seen_samples=first.seen_samples,
        )

    def _gradient_source(self, learners: Sequence[Learner], weights: Tensor, batches: Batches) -> GradientSource:
        first = learners[0]
        if self._formula is None:
            return ModuleGradients(first, batches)
        masks = None
        if first.modes.drops:
            x, _ = batches.fetch(self._schedule.orders[: len(learners)], self._clock.in_epoch)
            with first.computing():
                masks = Masks(first.model, x[0], [learner.dropout for learner in learners])
        return FunctionalGradients(self._formula, self._layout.views(weights), batches, masks)

    # Tasks

    def _begin_task(self) -> None:
        self.step = 0
        for i, learner in enumerate(self.learners):
            learner.begin_task(self.task)
            self._bind(i)
            self._hold(i)
        for buffer in self._kept.moments:
            buffer.zero_()
        self._begin_states()
        self._start.copy_(self._kept.weights)
        self._fill_task()

    def _begin_states(self) -> None:
        """Let the states of measures begin anew, but for those that last, as the guards have them."""
        for rows, (label, state) in zip(self._kept.states, self._state_names, strict=True):
            lasts = self._first.path_measures[label].running[state] == "lasting"
            for i, learner in enumerate(self.learners):
                known = learner.guard.gradients.path.running[label][state] if lasts else {}
                # What a guard has may lie in these very rows.
                self._layout.fill(rows[i], {name: tensor.clone() for name, tensor in known.items()})

    def _fill_task(self) -> None:
        samples = [learner.samples(self.task) for learner in self.learners]
        for lane in self._lanes:
            runs = len(lane.hold)
            lane.batches.fill(samples[:runs])
            lane.gradients.begin_task(self.task)
            samples = samples[runs:]
        if self._first.settings.rate_decay != 1:  # which follows the task's own length
            rows = self._update.optimizer.coefficients(self._first.task_steps(self.task))
            self._schedule.coefficients[: len(rows)].copy_(rows)
        self._clock.set(0, self.step)

    def _bind(self, run: int) -> None:
        """Let the parameters that the task trains lie in the run's row, with the values they have."""
        model, tasks = self.learners[run].model, self._first.scenario.tasks
        head = tasks[min(self.task, len(tasks) - 1)].head
        views = self._layout.views(self._kept.weights[run])
        owned = {view.data_ptr() for view in views.values()}
        # Another task's head may lie where this task's will.
        for i, other in enumerate(model.heads):
            for parameter in other.parameters():
                if i != head and parameter.data_ptr() in owned:
                    parameter.data = parameter.data.clone()
        for name, parameter in trained_parameters(model, head).items():
            if parameter.data_ptr() != views[name].data_ptr():
                views[name].copy_(parameter.detach())
                parameter.data = views[name]

    def _end_task(self) -> None:
        self._report_paths()
        for learner in self.learners:
            if learner.outcome.failure is not None:
                continue
            try:
                learner.end_task(self.task)
            except NotFiniteError as error:
                learner.outcome.failure = str(error)
        self._stop_if_all_failed()

    def _report_paths(self) -> None:
        """Tell the runs' guards what was measured along the path."""
        for i, learner in enumerate(self.learners):
            protected = learner.guard.parameters

            def own(rows: Tensor, row: int = i, names: Sequence[str] = tuple(protected)) -> dict[str, Tensor]:
                views = self._layout.views(rows[row])
                return {name: views[name] for name in names if name in views}  # frozen ones have no place

            running: dict[str, dict[str, dict[str, Tensor]]] = {label: {} for label in learner.path_measures}
            for (label, state), rows in zip(self._state_names, self._kept.states, strict=True):
                running[label][state] = own(rows)
            learner.guard.gradients.path = PathRecord(running, own(self._start), self.step)

    def _hold(self, run: int) -> None:
        """Take over what a run's guard holds it to."""
        guard = self.learners[run].guard
        strength = guard.strength
        if isinstance(strength, dict):
            raise ConfigurationError(
                f"The fast engine cannot do with strengths by pattern, strength={strength}; expected engine='plain' "
                "for such a run."
            )
        self._strengths[run] = 2 * strength
        if self._layer_holds is None:
            importance = guard.held.importance
        else:  # of a layer's matrix, the diagonal is for reading only
            matrices = guard.held.matrices
            self._layer_holds.take(run, matrices)
            importance = {m.name: m.omega for m in matrices.values() if isinstance(m, DiagonalMatrix)}
        self._layout.fill(self._kept.importance[run], importance)
        self._layout.fill(self._kept.anchor[run], guard.anchor)

    def _let_go(self) -> None:
        """Let the networks have weights of their own again, once all is learned."""
        for learner in self.learners:
            for parameter in learner.model.parameters():
                parameter.data = parameter.data.clone()

    # Steps

    def _prepare(self) -> None:
        """Compile and record the step, the first time, and again when layers' matrices begin to hold."""
        holding = self._layer_holds is not None and self._layer_holds.holding
        recorded = bool(self._recordings) and self._recorded_holding == holding
        if self._device.type != "cuda" or recorded:
            return
        self._recorded_holding = holding
        started = time.perf_counter()
        self._clock.set(0, 0)
        with torch.cuda.device(self._device), tf32_allowed(self._first.precision == "tf32", self._device):
            changed = [
                *(*self._kept.tensors(), self._clock.counts, self._schedule.losses),
                *(buffer for learner in self.learners for buffer in learner.model.buffers()),
            ]
            squaring = any(measure.needs.squares for measure in self._first.path_measures.values())
            self._recordings = {
                squared: Recording(
                    partial(self._take_step, squared=squared), changed, [learner.dropout for learner in self.learners]
                )
                for squared in ((False, True) if squaring else (False,))
            }
        torch.cuda.synchronize(self._device)
        self.preparing_seconds += time.perf_counter() - started

    @torch.no_grad()
    def _take_step(self, *, squared: bool = False) -> None:
        """Take a step of every run, with the squared gradients of its samples where measures want them."""
        holds = self._layer_holds
        pulls = None if holds is None or holds.implicit else beside(holds.pulls, self._device)
        if self._device.type == "cuda":
            in_parallel([partial(lane.take_step, pulls, squared=squared) for lane in self._lanes])
        else:
            for lane in self._lanes:
                lane.take_step(pulls, squared=squared)
        if holds is not None and holds.implicit:
            row = self._schedule.coefficients.index_select(0, self._clock.in_task)[0]
            holds.pull_(self._strengths * self._update.optimizer.reach(self._kept.moments, row))
        self._clock.tick()

    def _take_steps(self, most: int, wanted: Sequence[int]) -> int:
        """Take up to so many steps, but a step that observers want to see by itself; return how many."""
        coming = bisect.bisect_left(wanted, self.step)
        until_wanted = wanted[coming] - self.step if coming < len(wanted) else most
        if until_wanted == 0:
            with contextlib.ExitStack() as looking:
                for learner in self.learners:
                    looking.enter_context(learner.observed(self.task, self.step))
                return self._take_unseen_steps(1)
        return self._take_unseen_steps(min(most, until_wanted))

    def _take_unseen_steps(self, most: int) -> int:
        """Take up to so many steps, and return how many: all of them where they are only launched."""
        if self._recordings:
            # Launching takes no time, so what has been seen of the device's pace says when to look at it again.
            launched = min(most, max(1, int(TELL_EVERY / self._pace)))
            with torch.cuda.device(self._device):
                for squared, steps in self._alike(launched):
                    self._recordings[squared].take_steps(steps)
            return launched
        until, taken = time.perf_counter() + TELL_EVERY, 0
        while taken == 0 or (taken < most and time.perf_counter() < until):
            self._take_step(squared=self._first.wants_squares(self.step + taken))
            taken += 1
        return taken

    def _alike(self, steps: int) -> Iterator[tuple[bool, int]]:
        """Yield how many of the coming steps in a row are with the squared gradients of samples, or without."""
        wanted = (self._first.wants_squares(self.step + i) for i in range(steps))
        for squared, some in itertools.groupby(wanted):
            yield squared, sum(1 for _ in some)

    def _draw_ahead(self) -> None:
        if self.task + 1 < len(self._first.scenario):
            for learner in self.learners:
                learner.draw_ahead(self.task + 1)

    def _orders(self, epoch: int) -> list[Tensor]:
        """Return the order of an epoch for each run, and that of the second batches where they are needed."""
        kinds = (False, True) if self._schedule.second_orders is not None else (False,)
        # The runs of a lane look up their samples in one table, in which each has its own block.
        blocks = [i * lane.batches.capacity for lane in self._lanes for i in range(len(lane.hold))]
        found = [
            torch.stack(
                [own.order(self.task, epoch, second=second) + i for own, i in zip(self.learners, blocks, strict=True)]
            )
            for second in kinds
        ]
        return [order.pin_memory() for order in found] if self._device.type == "cuda" else found

    def _use_orders(self, orders: list[Tensor], done: int) -> None:
        for buffer, order in zip((self._schedule.orders, self._schedule.second_orders), orders, strict=False):
            assert buffer is not None
            buffer[:, : order.shape[1]].copy_(order, non_blocking=True)
        self._clock.set(done, self.step)

    def _check_losses(self, done: int, taken: int) -> tuple[float, ...]:
        """Return each run's last loss, and note the runs that have diverged."""
        losses = self._schedule.losses[:, done : done + taken].tolist()
        for learner, own in zip(self.learners, losses, strict=True):
            wrong = next((i for i, loss in enumerate(own) if not math.isfinite(loss)), None)
            if wrong is not None and learner.outcome.failure is None:
                learner.outcome.failure = diverged(
                    own[wrong], self.task, self.step + wrong, learner.samples(self.task).x
                )
        self._stop_if_all_failed()
        return tuple(own[-1] for own in losses)

    def _stop_if_all_failed(self) -> None:
        failures = [learner.outcome.failure for learner in self.learners]
        if all(failure is not None for failure in failures):
            raise NotFiniteError(str(failures[0]))
