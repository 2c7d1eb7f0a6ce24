"""One network that learns one scenario: everything about a run but how its steps are taken.

The engines take the steps: :class:`~anchorhold_lab.training.plain_run.PlainRun` one run's, in a loop that anyone can
read, and :class:`~anchorhold_lab.training.fast.FastRuns` those of several runs side by side.
"""

import contextlib
import copy
import itertools
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from anchorhold.errors import AnchorholdWarning, ConfigurationError
from anchorhold.forms import Form
from anchorhold.guard import Guard, GuardOptions
from anchorhold.guard.core import AnchorKind
from anchorhold.holds import Buffer, Hold
from anchorhold.holds.of_batches.batch_hold import BatchHold
from anchorhold.measures import Measure, PathMeasure
from anchorhold.retention import Tolerance
from anchorhold.seeding import generator_for
from anchorhold.tensors.divergence import divergence
from anchorhold_lab.networks import MultiHead, draw_weights, give_generator, take_weights, with_own_dropout
from anchorhold_lab.scenarios import Samples, Scenario, open_outputs
from anchorhold_lab.training.batch_order import epoch_order, second_order, steps_per_epoch
from anchorhold_lab.training.modes import FEW, Modes, modes_of
from anchorhold_lab.training.network_calls import NetworkCalls
from anchorhold_lab.training.options.bounds import check_unprotected, own_heads, together, training_sizes
from anchorhold_lab.training.options.fitting_scenario import check_judge, check_network, check_set_aside, unusual_type
from anchorhold_lab.training.options.halves import check_halves
from anchorhold_lab.training.options.posteriors import Posterior, check_restart, variational_hold
from anchorhold_lab.training.options.precision import check_precision, computing_in
from anchorhold_lab.training.options.two_columns import Phase, TwoColumns, check_columns, phase_of
from anchorhold_lab.training.options.without_tasks import load_state as load_task_free
from anchorhold_lab.training.options.without_tasks import state_of, task_free_of
from anchorhold_lab.training.protocol import Settings
from anchorhold_lab.training.relative_guard import RelativeGuard
from anchorhold_lab.training.telling.observer import Observer
from anchorhold_lab.training.telling.progress import Outcome, Progress
from anchorhold_lab.training.telling.retention import Seen, TaskRetention, noted, strength_of

LEFT_OUT = ("tokens", "weights")
"""What a run's state has not of its guard's: T, which is 1 of every task here, and the mark of the model's weights,
which the state has whole. Its digest is that of version 0.1.0."""


class Learner:
    """A network, the scenario that it learns, and the measure that protects what it has learned.

    Args:
        scenario: the tasks.
        model: the network; its trained weights are drawn anew from the seed.
        measure: what drives the penalty.
        strength: the penalty's strength c.
        settings: the protocol of the run.
        seed: decides weights, orders, dropout and the samples that are measured.
        watch: measures that only observe.
        device: where to train.
        judge_by: the samples that accuracies are of, ``"test"`` or ``"validation"``.
        precision: ``"fp32"``, ``"tf32"`` or ``"bf16"``.
        observers: what looks at the run from close by, by name.
        form: in which space importance is kept.
        holds: what pulls beside the guard's own hold.
        anchor: what weights are held to, ``"last"`` or ``"mean"``.
        gradient_term: whether the gradients of the tasks' losses are part of the hold.
        batch_norm: what becomes of batch norms' running statistics, as for :class:`anchorhold.Guard`.
        implicit: whether the hold is applied after each step; see there.
        relative_strength: s, of which the first task makes the strength, instead of the one that is given.
        tolerance: how much may be lost of any task by the end of the last, in nats a sample, instead of a strength;
            each task after the first may use an equal part of it. It is measured on samples that the scenario has set
            aside, which are kept of each task in any case (:func:`~anchorhold_lab.scenarios.set_aside`).
    """

    def __init__(
        self,
        scenario: Scenario,
        model: MultiHead,
        measure: Measure,
        strength: float,
        settings: Settings,
        *,
        seed: int,
        watch: Sequence[Measure] | Mapping[str, Measure] = (),
        device: torch.device | str = "cpu",
        judge_by: str = "test",
        precision: str = "fp32",
        observers: Mapping[str, Observer] | None = None,
        form: Form | str = "diagonal",
        holds: Sequence[Hold] = (),
        anchor: AnchorKind = "last",
        gradient_term: bool = False,
        batch_norm: str | None = None,
        implicit: bool = False,
        relative_strength: float | None = None,
        tolerance: Tolerance | None = None,
    ) -> None:
        self.settings = settings
        self.seed = seed
        self.device = torch.device(device)
        self.precision = check_precision(precision)
        self.judge_by = judge_by
        self.scenario = scenario.to(self.device)
        check_judge(judge_by, scenario)
        check_network(model, self.scenario)
        check_unprotected(settings.trains, measure, [*map(repr, holds), *watch, *(observers or {})])
        watching = watch.values() if isinstance(watch, Mapping) else watch
        check_columns(settings.compress, [measure, *watching], [*map(repr, holds), *(observers or {})])
        sizes = [len(task.stored_train) for task in scenario.tasks]
        self._sizes = training_sizes(sizes, settings.trains)
        self.model = with_own_dropout(model).to(self.device)
        own = variational_hold(holds)
        check_restart(own, settings.consolidate)
        self.posterior = None
        if own is not None:
            self.posterior = Posterior(own, self.model, scenario, settings.batch_size, settings.learning_rate)
        self.modes = self._modes()
        if self.modes.draws:
            warnings.warn(
                "The network draws random numbers in its own code while training, which the seed does not decide: the "
                "run cannot be repeated or resumed exactly. Use nn.Dropout layers, which can.",
                AnchorholdWarning,
                stacklevel=2,
            )
        self.model.initialise(generator_for(seed, "weights", 0))
        self.dropout = generator_for(seed, "dropout", 0, device=self.device)
        give_generator(self.model, self.dropout)
        self.columns = None
        if settings.compress:
            self.columns = TwoColumns(self.model, self.few_inputs(), seed=seed, reinitialise=settings.reinitialise)
            give_generator(self.columns.active, self.dropout)
        # A head that belongs to one task is never protected; one that all share is a layer like the others.
        protect = "body.*" if scenario.heads > 1 else None
        how_strongly: dict[str, Any] = {"strength": strength}
        kind: type[Guard] = Guard
        if relative_strength is not None:
            kind, how_strongly = RelativeGuard, {"relative_strength": relative_strength}
        if tolerance is not None:
            how_strongly = {"tolerance": tolerance}
            check_set_aside(tolerance, scenario)
        self._tolerance = tolerance
        self.guard = kind(
            self.model,
            measure,
            **how_strongly,
            protect=protect,
            form=form,
            holds=holds,
            anchor=anchor,
            from_scratch=True,
            watch=watch,
            batch_norm=batch_norm,
            options=GuardOptions(gradient_term=gradient_term, implicit=implicit),
        )
        self._calls = NetworkCalls(self.scenario, self.precision, self.device, lambda: self._at)
        for hold in self.guard.options.holds:
            if isinstance(hold, BatchHold) and hold.forward is None:
                hold.call_by(self._calls.for_hold(hold))
        check_halves(settings.second_batch, self.guard.measures.values())
        for task, measured in itertools.product(range(len(scenario)), self.path_measures.values()):
            measured.check_task(self.task_steps(task))
        self.observers = dict(observers or {})
        self.task_free = task_free_of(settings, self.guard, scenario.heads, self.observers)
        self._drawn: dict[int, dict[str, Tensor]] = {}
        self.outcome = Outcome(untrained=[])
        self.outcome.untrained = self.accuracies()

    @property
    def path_measures(self) -> dict[str, PathMeasure]:
        """The measures that see every step, by name."""
        return {name: cast("PathMeasure", m) for name, m in self.guard.measures.items() if m.needs.path}

    @property
    def needs_own_gradient(self) -> bool:
        """Whether measures need a gradient in evaluation mode beside the one that makes the step."""
        if self.halves:
            return True
        return self.modes.matter and any(measure.needs.gradient for measure in self.path_measures.values())

    @property
    def needs_second_batch(self) -> bool:
        """Whether some measure needs the gradient of a second, independent batch."""
        return any(measure.needs.independent for measure in self.path_measures.values())

    def wants_squares(self, step: int) -> bool:
        """Whether some measure needs the squared gradients of a step's samples, by its number within the task."""
        return any(measure.wants_squares(step) for measure in self.path_measures.values())

    @property
    def halves(self) -> bool:
        """Whether measures see the halves of a batch in place of two batches."""
        return self.settings.second_batch == "halves"

    @property
    def seen_samples(self) -> int:
        """How many samples each gradient has that measures see."""
        return self.settings.batch_size // (2 if self.halves else 1)

    def samples(self, task: int) -> Samples:
        """Return a task's training samples; in joint training, those of all tasks before it too."""
        if self.settings.trains == "jointly":
            return together(self.scenario.tasks[: task + 1])
        return self.scenario.tasks[task].train

    def heads(self, task: int, chosen: Tensor) -> int | Tensor:
        """Return the head that some of a task's training samples go through; in joint training, one for each."""
        if self.settings.trains == "jointly" and self.scenario.heads > 1:
            return own_heads(self.scenario.tasks[: task + 1], chosen)
        return self.scenario.tasks[task].head

    def _modes(self) -> Modes:
        """Return how the network differs in training, for which it has to run once."""
        inputs = self.few_inputs()
        try:
            return modes_of(self.model, inputs)
        except torch.OutOfMemoryError:
            raise
        except RuntimeError as error:
            raise ConfigurationError(
                f"The network cannot take inputs of shape {tuple(inputs.shape)}{unusual_type(inputs)}, as the scenario "
                f"has them: {error}. Expected a body that turns them into [N, features], and MultiHead(..., features=) "
                "with that number."
            ) from error

    def few_inputs(self) -> Tensor:
        """Return some inputs of the first task, as the network sees them."""
        task = self.scenario.tasks[0]
        return task.transform(task.stored_train.x[:FEW])

    def epoch_steps(self, task: int) -> int:
        """Return how many steps an epoch of a task has."""
        return steps_per_epoch(self._sizes[task], self.settings.batch_size)

    def task_steps(self, task: int) -> int:
        """Return how many steps a task has."""
        return self.settings.passes_of(task) * self.epoch_steps(task)

    def phase(self, task: int, step: int) -> Phase:
        """Return the part of a task that a step is in: all of it, or with two columns one of its two."""
        return phase_of(step, *(epochs * self.epoch_steps(task) for epochs in self._passes(task)))

    def _passes(self, task: int) -> tuple[int, int]:
        return self.settings.epochs_of(task), self.settings.compress

    def trained(self, task: int, step: int) -> nn.Module:
        """Return the network that a step moves: the run's own, or the active column beside it."""
        over = task == len(self.scenario)  # of which the network is left, as its last step has left it
        if self.columns is None or over or self.phase(task, step).compresses:
            return self.model
        return self.columns.active

    def order(self, task: int, epoch: int, *, second: bool = False) -> Tensor:
        """Return the samples of each step of an epoch, or those of its second batches, ``[steps, batch_size]``.

        Where halves serve, the second batch is the second half of the first.
        """
        if second and self.halves:
            return self.order(task, epoch)[:, self.seen_samples :]
        draw = second_order if second else epoch_order
        return draw(self._sizes[task], self.settings.batch_size, seed=self.seed, task=task, epoch=epoch)

    def progress(
        self,
        task: int,
        step: int,
        started: float,
        losses: tuple[float, ...],
        *,
        learned: bool = False,
        together: Sequence["Learner"] = (),
    ) -> Progress:
        """Return where an engine stands that began a task at ``started``, as ``time.perf_counter()`` had it.

        Where several runs train together, these are all of them.
        """
        tasks, epochs = len(self.scenario), self.settings.passes_of(task)
        seconds = time.perf_counter() - started
        runs = (together or (self,)) if self.notes_retention else ()
        # A task that was learned is told of when the next has begun, by which more may be lost.
        seen = tuple(
            each.outcome.retention[-1].seen if learned and each.outcome.retention else each.seen for each in runs
        )
        return Progress(task, tasks, step, self.task_steps(task), epochs, seconds, losses, learned, seen)

    @property
    def notes_retention(self) -> bool:
        """Whether there is more to say of how it is held than a strength that was given."""
        guard = self.guard
        return isinstance(guard, RelativeGuard) or guard.tolerance is not None or self.scenario.keeps

    @property
    def seen(self) -> Seen:
        """How it is held, and what it has lost by the last look: in training, or where the last task ended."""
        guard, last = self.guard, self.outcome.retention[-1:]
        lost = guard.control.last_seen or (last[0].seen.lost if last else {})
        return Seen(strength_of(guard), lost, guard.tolerance)

    def begin_task(self, task: int) -> None:
        """Draw the weights anew where the settings say so."""
        if self.columns is not None:
            self.columns.begin_task(task)
        elif task and self.settings.reinitialise:
            self.draw_ahead(task)
            drawn = self._drawn.pop(task)
            if self.guard.options.batch_norm == "freeze":  # statistics stay, and are no weights
                statistics = dict(self._redrawn.named_buffers())
                drawn = {name: value for name, value in drawn.items() if name not in statistics}
            take_weights(self._redrawn, drawn)
        if self.posterior is not None:
            self.posterior.begin_task(task, self._sizes[task])
        if self._tolerance is not None and task:  # an equal part for each task that can lose anything
            self.guard.tolerance = self._tolerance.nats * task / (len(self.scenario) - 1)
        for observer in self.observers.values():
            observer.task_begun(self, task)

    def draw_ahead(self, task: int) -> None:
        """Draw the weights that a task will begin with, for an engine that has time to."""
        if self.settings.reinitialise and task not in self._drawn:
            self._drawn[task] = draw_weights(self._redrawn, self.model.bias, generator_for(self.seed, "weights", task))

    @property
    def _redrawn(self) -> nn.Module:
        """The part of the network that is drawn anew: all but heads that belong to one task."""
        return self.model if self.scenario.heads == 1 else self.model.body

    def end_task(self, task: int) -> None:
        """Measure what the task was worth, hold it from now on, and see how well every task is done now."""
        head, trace = self.scenario.tasks[task].head, self.guard.control.trace
        if self.task_free is None:
            outputs = self.outputs(task)
            with self.expecting_new_classes():
                found = self.guard.consolidate(
                    self._measured(task), forward=lambda model, x: open_outputs(model(x, head), outputs)
                )
        else:  # which is told of no ends
            found = {}
            if task == len(self.scenario) - 1 and not self.task_free.consolidated:
                warnings.warn(
                    f"consolidate={self.settings.consolidate!r}: the run of {self.task_free.steps} steps never came "
                    "to it, so that nothing was held. Consolidate every so many steps, fewer than there are, or train "
                    "for longer.",
                    AnchorholdWarning,
                    stacklevel=2,
                )
        self.outcome.strength_record = self.guard.held.record()
        if self.notes_retention:
            self.outcome.retention.append(noted(self.guard, task, trace))
            self._keep(task)
        for observer in self.observers.values():
            observer.task_ended(self, task, found)
        accuracies = self.accuracies(learned=task + 1)
        if task and self.settings.trains == "anew":  # the networks of earlier tasks are as they were
            accuracies[:task] = self.outcome.matrix[-1][:task]
        self.outcome.matrix.append(accuracies)

    def _keep(self, task: int) -> None:
        """Keep what was set aside of a task, with the predictions of the network that has just learned it."""
        aside = self.scenario.tasks[task].kept
        if aside is not None:
            forward = partial(self._calls.logits, task=task)
            self.guard.keep([(aside.x, aside.y)], name_of(task), forward=forward, samples=len(aside))

    def wanted_steps(self, task: int) -> list[int]:
        """Return the steps of a task that some observer wants to see."""
        steps = self.task_steps(task)
        return sorted({step for observer in self.observers.values() for step in observer.wanted_steps(task, steps)})

    @contextlib.contextmanager
    def observed(self, task: int, step: int) -> Iterator[None]:
        """Let observers look before and after a step that they want to see."""
        steps = self.task_steps(task)
        looking = [each for each in self.observers.values() if step in each.wanted_steps(task, steps)]
        for observer in looking:
            observer.before_step(self, task, step)
        yield
        for observer in looking:
            observer.after_step(self, task, step)

    @property
    def observations(self) -> dict[str, dict[str, Any]]:
        """All that was observed so far, by the observer's name."""
        return {name: observer.state() for name, observer in self.observers.items()}

    def loss(self, x: Tensor, y: Tensor, task: int, heads: int | Tensor | None = None) -> Tensor:
        """Return the mean cross-entropy of a batch, in the run's precision, through the task's head or others."""
        return task_loss(self._calls.logits(self.model, x, task, heads), y)

    def step_loss(self, x: Tensor, y: Tensor, task: int, heads: int | Tensor, step: int) -> Tensor:
        """Return what a step lowers: the task's loss, or how far the knowledge base is from the active column."""
        if self.columns is None:
            return self.loss(x, y, task, heads)
        logits = self._calls.logits
        if not self.phase(task, step).compresses:
            return task_loss(logits(self.columns.active, x, task), y)
        return divergence(logits(self.columns.told, x, task), logits(self.model, x, task))

    def outputs(self, task: int) -> int | None:
        """Return how many outputs are open while a task is learned; ``None`` for all, where heads do not grow."""
        return self.scenario.tasks[task].outputs

    @contextlib.contextmanager
    def expecting_new_classes(self) -> Iterator[None]:
        """Be silent about classes that are all new, where the head grows: that is what was asked for."""
        if not self.scenario.grows:
            yield
            return
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "The classes of this task", AnchorholdWarning)
            yield

    @property
    def _at(self) -> int:
        """The task that is being learned, or has just been."""
        return min(len(self.outcome.matrix), len(self.scenario) - 1)

    def computing(self) -> contextlib.AbstractContextManager[None]:
        """Compute in the run's precision."""
        return computing_in(self.precision, self.device)

    @torch.no_grad()
    def accuracies(self, learned: int | None = None) -> list[float]:
        """Return the accuracy on every task, on the samples that the run is judged by.

        Args:
            learned: how many tasks have been learned, whose coresets may be looked at; as many as were judged before.
        """
        self.model.eval()
        # Enough to fill an accelerator, little enough for a CPU's cache.
        batch = 1000 if self.device.type == "cpu" else 5000
        right, counts = [], []
        scores = self._scores(len(self.outcome.matrix) if learned is None else learned)
        with self.computing():
            for i, task in enumerate(self.scenario.tasks):
                samples: Samples = getattr(task, self.judge_by)
                pairs = zip(samples.x.split(batch), samples.y.split(batch), strict=True)
                right.append(torch.stack([(scores(x, i).argmax(1) == y).sum() for x, y in pairs]).sum())
                counts.append(len(samples))
        # Read all at once: an accelerator would be waited for each time.
        return [correct / count for correct, count in zip(torch.stack(right).tolist(), counts, strict=True)]

    def _scores(self, learned: int) -> Callable[[Tensor, int], Tensor]:
        """Return what gives the classes of some inputs of a task their scores, by which the run is judged."""
        tasks, posterior, outputs = self.scenario.tasks, self.posterior, self.outputs(self._at)
        if posterior is None:
            return lambda x, task: open_outputs(self.model(x, tasks[task].head), outputs)
        with self.computing():
            weights = posterior.weights(learned, outputs)
        return lambda x, task: posterior.scores(x, tasks[task].head, weights[task], outputs)

    def state(self) -> dict[str, Any]:
        """Return everything about the run but its optimizer, the samples in holds' buffers too."""
        kept = {name: copied(buffer.state_dict()) for name, buffer in self._buffers.items()}
        return {
            "model": {name: tensor.clone() for name, tensor in self.model.state_dict().items()},
            "guard": {key: copied(value) for key, value in self.guard.state_dict().items() if key not in LEFT_OUT},
            "dropout": self.dropout.get_state(),
            "matrix": copy.deepcopy(self.outcome.matrix),
            "untrained": list(self.outcome.untrained),
            "failure": self.outcome.failure,
            "observers": copied(self.observations),
            **({"buffers": kept} if kept else {}),
            **({"retention": [noted.to_dict() for noted in self.outcome.retention]} if self.notes_retention else {}),
            **({"kept": copied(self.guard.kept.state_dict())} if self.guard.kept else {}),
            **({} if self.task_free is None else {"task_free": copied(state_of(self.task_free))}),
            **({} if self.columns is None else {"active": copied(dict(self.columns.active.state_dict()))}),
        }

    def load_state(self, state: dict[str, Any]) -> None:
        """Go on from a state."""
        self.model.load_state_dict(state["model"])
        if self.columns is not None:
            self.columns.active.load_state_dict(state["active"])
        if "kept" in state:  # before the guard, whose own state leaves them out and asks for them
            self.guard.kept.load_state_dict(state["kept"])
            for task in range(len(state["matrix"])):
                self.guard.kept[name_of(task)].forward = partial(self._calls.logits, task=task)
        # T is 1 of every task here, and left out of states, whose digests are those of version 0.1.0.
        driver = next(iter(self.guard.measures.values()))
        counts = driver.needs.data or driver.is_in_nats
        tokens = {"tokens": [1.0] * state["guard"]["tasks"]} if counts else {}
        self.guard.load_state_dict({**state["guard"], **tokens})
        for name, buffer in self._buffers.items():
            buffer.load_state_dict(state["buffers"][name])
        if self.task_free is not None:
            load_task_free(self.task_free, copied(state["task_free"]))
        self.dropout.set_state(state["dropout"].cpu())
        retention = [TaskRetention.from_dict(noted) for noted in state.get("retention", ())]
        self.outcome = Outcome(list(state["untrained"]), copy.deepcopy(state["matrix"]), state["failure"], retention)
        self.outcome.strength_record = self.guard.held.record() if self.guard.tasks else None
        if self.posterior is not None:  # how many samples a task has is no part of a guard's state
            self.posterior.count(self._sizes[self._at])
        for name, observer in self.observers.items():
            observer.load_state(copied(state["observers"][name]))

    @property
    def _buffers(self) -> dict[str, Buffer]:
        """The buffers of holds, which a guard's own state leaves out, by the holds' names."""
        holds = [hold for hold in self.guard.options.holds if isinstance(hold, BatchHold)]
        return {hold.name: hold.buffer for hold in holds if hold.buffer is not None}

    def _measured(self, task: int) -> list[tuple[Tensor, Tensor]]:
        """Return the samples that measures after training look at: random ones, the same for all measures."""
        samples = self.scenario.tasks[task].train
        drawn = torch.randperm(len(samples), generator=generator_for(self.seed, "measured", task))
        chosen = drawn[: self.settings.samples].to(self.device)
        # An accelerator wants larger batches; those of the diagonal stay as they are, since sums are rounded by them.
        size = 500 if self.device.type == "cpu" or self.guard.options.form.elementwise else 2000
        return list(zip(samples.x[chosen].split(size), samples.y[chosen].split(size), strict=True))


def name_of(task: int) -> str:
    """Return what the kept inputs of a task are called, as people count."""
    return f"task {task + 1}"


def task_loss(logits: Tensor, y: Tensor) -> Tensor:
    """Return the mean cross-entropy; a softmax in 16 bits would lose what training needs near its end."""
    return F.cross_entropy(logits.to(torch.promote_types(logits.dtype, torch.float32)), y)


def copied(state: Any) -> Any:
    """Return a state whose tensors are its own, each with no more memory than it needs."""
    match state:
        case Tensor():
            return state.clone()
        case dict():
            return {key: copied(value) for key, value in state.items()}
        case list() | tuple():
            return type(state)(copied(value) for value in state)
    return state
