"""A callback for Hugging Face's Trainer, and so for all trainers that are made from it, such as TRL's.

>>> guard = anchorhold.Guard(model, anchorhold.SOS(), strength=100.0)
>>> trainer = Trainer(model, args, train_dataset=..., callbacks=[AnchorholdCallback(guard)])
"""

import sys
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, NoReturn

import torch
from torch import nn
from torch.optim import Optimizer

from anchorhold.engine.batches import Forward, check_batches
from anchorhold.errors import (
    AnchorholdError,
    AnchorholdWarning,
    BatchError,
    ConfigurationError,
    MissingExtraError,
    StateError,
    warn,
)
from anchorhold.guard import Guard
from anchorhold.guard.distributed.ranks import Ranks
from anchorhold.guard.measurement import REHEARSED
from anchorhold.integrations.callbacks import (
    TRAINED,
    BestWithin,
    GuardInCallback,
    StopAt,
    checked_end,
    checked_share_at_end,
    checked_task_free,
    end_within_tolerance,
    explaining,
    join_processes,
    made_task_free,
    of_another_trainer,
    refuse_endless_data,
    resume_task_free,
    sample_limits,
    statistics,
)
from anchorhold.integrations.huggingface_steps import SeenSteps, check_steps_are_seen
from anchorhold.integrations.loader_samples import first_batches, spread_batches
from anchorhold.protection import ProtectedGuard, Protection, Report, protect, resume_protection
from anchorhold.protection.guard import PROTECTION_FILE, write_protection
from anchorhold.seeding import undisturbed
from anchorhold.task_free import TaskFree

try:
    from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments
    from transformers.trainer_utils import has_length

    from anchorhold.integrations.huggingface_checkpoints import (
        begin_run,
        checkpoint_folder,
        checkpoint_to_resume,
        state_of_best,
        write_state,
    )
except ImportError as error:
    raise MissingExtraError(
        "The callback for Hugging Face's Trainer needs transformers and accelerate, and one of them is not installed: "
        "pip install 'anchorhold[huggingface]'"
    ) from error


class AnchorholdCallback(TrainerCallback):
    """Lets a Guard watch, and hold back, every optimizer step of a Trainer.

    It attaches the guard to the optimizer, ends a task at the end of each ``train()``, and adds ``anchorhold/penalty``,
    ``anchorhold/importance_mean`` and the like to the Trainer's logs. The guard's state, and that of ``task_free``, is
    written into each of the Trainer's checkpoints, and read again when training resumes from one, or ends with the best
    of them.

    Args:
        guard: the Guard of the model that is trained, or a function that makes one from that model when training
            starts, for trainers that make the model: ``model_init``, ``hyperparameter_search``, TRL's ``peft_config``.
        consolidate_at_end: whether the end of training is the end of a task: ``True`` to consolidate then, with the
            training data where the measure looks at data; or the batches to do so with, such as a DataLoader.
        forward: how the model is called while it is measured, as in :meth:`anchorhold.Guard.consolidate`.
        stop_at: stop training once more nats than that are lost of the worst set that ``guard.keep`` was given, at
            three looks in a row; ``stop.stopped_at`` says what was lost then.
        best_within: give evaluations ``eval_within_loss``, their loss where no more nats than that are lost of the
            worst kept set, to end with the best of these:
            ``TrainingArguments(metric_for_best_model="eval_within_loss", load_best_model_at_end=True)``. An
            ``EarlyStoppingCallback`` that goes by it has to come after this one.
        share: of the way from the anchor to where training has ended, that weights keep when it ends, as by
            :meth:`anchorhold.Guard.average`. In a first task, which has no anchor, they keep all.
        task_free: consolidates by itself on the way, as it is told of every optimizer step: a
            :class:`anchorhold.TaskFree` of the same guard, or a function that makes one from the guard. The model has
            to return its loss, as it does when it is given ``labels``.
    """

    def __init__(
        self,
        guard: Guard | Callable[[nn.Module], Guard],
        consolidate_at_end: bool | Iterable[Any] = True,
        forward: Forward | None = None,
        *,
        stop_at: float | None = None,
        best_within: float | None = None,
        share: float | None = None,
        task_free: TaskFree | Callable[[Guard], TaskFree] | None = None,
    ) -> None:
        self._makes_task_free = task_free if callable(task_free) else None
        given = None if self._makes_task_free is not None else task_free
        self.task_free = checked_task_free(given, guard)
        self._steps: SeenSteps | None = None
        self.stop = StopAt(stop_at)
        self.best = BestWithin(best_within)
        self.share = checked_share_at_end(share)
        self._source = GuardInCallback(guard, consolidate_at_end)
        self._to_rehearse = False
        self.consolidate_at_end = checked_end(consolidate_at_end)
        self.forward = forward

    @property
    def guard(self) -> Guard:
        """The Guard; one that a function makes is there from the start of training on."""
        return self._source.guard

    @property
    def setup(self) -> NoReturn:
        """What Lightning's Trainer looks up first."""
        raise of_another_trainer("Lightning's Trainer", "lightning")

    on_exception = setup  # which it looks up next, to tell of the first

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Make the guard if need be, take over its state if training resumes from a checkpoint, and attach it."""
        self._source.leave_other_model(kwargs["model"])
        guard = self._source.made_from(kwargs["model"])
        # The state is new for every train(), and all that callbacks have in common.
        met = vars(state).get("anchorhold_guard")
        if met not in (None, guard):
            raise ConfigurationError(
                f"The Trainer has two callbacks of type {type(self).__name__} with different guards, whose states "
                "would go to one file of a checkpoint. Give it one; a guard takes several measures: watch=[...]."
            )
        if self.consolidate_at_end is True and not has_length(kwargs["train_dataloader"]):
            refuse_endless_data(
                guard,
                "or give the batches to measure with: AnchorholdCallback(guard, consolidate_at_end=batches), or False "
                "to leave it",
            )
        found = checkpoint_to_resume(args, state)[1] if met is None and state.global_step > 0 else None
        if met is None:
            if found is not None:
                guard.load_state_dict(found)
            vars(state)["anchorhold_guard"] = guard
            begin_run(state)
        join_processes(guard)
        self.stop.begin(guard)
        self._check_search(args)
        self.best.begin(guard)
        optimizer: Optimizer = kwargs["optimizer"]
        guard.attach(optimizer)
        if self._makes_task_free is not None:
            self.task_free = made_task_free(self._makes_task_free, guard)
        if self.task_free is not None:
            if found is not None:
                resume_task_free(self.task_free, found)
            check_steps_are_seen(kwargs["model"])
            self._steps = SeenSteps(kwargs["model"])
        self._to_rehearse = self.consolidate_at_end is not False and bool(sample_limits(guard))

    def on_pre_optimizer_step(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Look away while holds run the model."""
        if self._steps is not None:
            self._steps.close()

    def on_step_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        """Rehearse the end after the first step, rather than find out hours later, and stop where too much is lost."""
        if self.stop.is_beyond(self.guard):
            control.should_training_stop = True
        if self._steps is not None and self.task_free is not None:
            loss, (*parts, last) = self._steps.take()
            for part in parts:
                self.task_free.samples.take(part)
            with undisturbed():  # training goes on after this
                self.task_free.step(loss, last)
        if not self._to_rehearse:
            return
        self._to_rehearse = False
        given = kwargs["train_dataloader"] if self.consolidate_at_end is True else self.consolidate_at_end
        batches = list(given[:1]) if isinstance(given, list | tuple) else first_batches(given, REHEARSED)
        # What one rank cannot read, none rehearses: the others would wait for it.
        if all(Ranks(self.guard.options.group).each(lambda: bool(batches))):
            with explaining(_REHEARSED):
                self.guard.rehearse(batches, forward=self.forward)

    def on_log(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        """Add the penalty and the importances to what is logged during training."""
        logs: dict[str, Any] = kwargs["logs"]
        if "loss" in logs:
            found = statistics(self.guard)
            logs.update(found)
            state.log_history[-1].update(found)  # the Trainer has already written its own copy there

    def _check_search(self, args: TrainingArguments) -> None:
        """Say so where the Trainer's search for its best checkpoint does not go by what is lost, or the wrong way."""
        metric = args.metric_for_best_model
        self.best.check_search([metric] if metric else [], 'metric_for_best_model="eval_within_loss"')
        if self.best.limit is not None and str(metric).endswith(BestWithin.NAME) and args.greater_is_better:
            raise ConfigurationError(
                f"greater_is_better=True with metric_for_best_model={metric!r}, which is a loss: the checkpoint that "
                "has lost most would be the best. Leave greater_is_better out, or give False."
            )

    def on_evaluate(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        """Give an evaluation in training what it is worth with what is lost, before the Trainer looks for its best."""
        metrics: dict[str, Any] = kwargs["metrics"]
        if "anchorhold_guard" in vars(state):
            found = self.best.scores(metrics, self.guard)
            metrics.update(found)
            state.log_history[-1].update(found)

    def on_save(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        """Write the guard's state into the checkpoint, and that of task_free."""
        write_state(args, state, self.guard, self.task_free)

    def on_train_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """End the task, if there was one, with the weights that the Trainer ends with."""
        if self._steps is not None:
            self._steps.end()
            self._steps = None
        if args.load_best_model_at_end and state.best_model_checkpoint is not None:
            self._go_back_to_best(state)
        self.best.tell_of_the_end()
        share = self.share if self.guard.tasks and self.guard.gradients.path.steps else None
        if self.consolidate_at_end is False or self.guard.gradients.path.steps == 0:
            end_within_tolerance(self.guard, share)
            return
        batches = kwargs["train_dataloader"] if self.consolidate_at_end is True else self.consolidate_at_end
        with explaining(_HOW_TO_MEASURE, TRAINED):
            self.guard.consolidate(batches, forward=self.forward, share=share)

    def _go_back_to_best(self, state: TrainerState) -> None:
        """Take over the guard's state of the best checkpoint, whose weights the model has now.

        What path measures have gathered since then is of steps that were taken back.
        """
        guard = self.guard
        try:
            found = Ranks(guard.options.group).together(lambda: state_of_best(state, guard))
        except StateError as error:
            if not any(measure.needs.path for measure in guard.measures.values()):
                return  # what looks at data or weights alone looks at those of now
            told = f"{error} What {', '.join(guard.measures)} gathered is of all steps, and these weights are not."
            if self.consolidate_at_end is False:
                warnings.warn(f"{told} {_WITHOUT_BEST}", AnchorholdWarning, stacklevel=2)
                return
            with explaining(TRAINED):
                raise StateError(f"{told} Nothing was consolidated. {_WITHOUT_BEST}") from error
        guard.load_state_dict(found)
        if self.task_free is not None:
            resume_task_free(self.task_free, found)
        guard.detach()  # what the optimizer remembers is of the last step, not of these weights


class ProtectCallback(AnchorholdCallback):
    """Protect what a model knows while a Trainer teaches it something new, by :func:`anchorhold.protect`.

    When training begins it writes the model's own text, measures, and attaches the guard; when training ends it
    averages the weights as far as that pays and reports, as :meth:`anchorhold.protection.ProtectedGuard.finish` does by
    new batches. Own text and the guard's state are in each of the Trainer's checkpoints, so that training resumes
    without writing or measuring.

    New batches are 64 samples of the data that the Trainer evaluated on, or else of its training data, spread evenly
    and collated as it does. The Trainer tells a callback of evaluation data once it has evaluated on it. Where the
    samples cannot be read, or have no labels, nothing is averaged, and a warning says why.

    >>> Trainer(model, args, train_dataset=..., callbacks=[ProtectCallback(tokenizer)])

    Save the model after ``train()``: checkpoints that the Trainer writes on the way are not averaged. Another
    ``train()`` protects the model anew, with what it has learned by then.

    Args:
        given: the tokenizer, by default the Trainer's ``processing_class``; or batches of old data.
        finish_new: batches of what was newly learned to weigh by, in the place of the Trainer's.
        finish_share: how much of what was learned the weights keep, as ``share`` of
            :meth:`~anchorhold.protection.ProtectedGuard.finish`; 1 averages nothing.
        finish_tolerance: how much may be lost at the end, as ``tolerance`` there.
        stop_at, best_within: as for :class:`AnchorholdCallback`.
        options: those of :class:`~anchorhold.protection.Protection`.
    """

    def __init__(
        self,
        given: Any = None,
        *,
        finish_new: Iterable[Any] | None = None,
        finish_share: float | None = None,
        finish_tolerance: float | None = None,
        stop_at: float | None = None,
        best_within: float | None = None,
        **options: Any,
    ) -> None:
        Protection.of(options)  # what is wrong with them is told before the Trainer begins
        ProtectedGuard.check_finish(finish_share, finish_tolerance, finish_new)
        super().__init__(self._protected, consolidate_at_end=False, stop_at=stop_at, best_within=best_within)
        self._given = given
        self._options = options
        self._share, self._tolerance = finish_share, finish_tolerance
        self._new = None if finish_new is None else check_batches(finish_new)
        self._tokenizer: Any = None
        self._is_finished = False
        self._checkpoint: tuple[Path, dict[str, Any]] | None = None

    @property
    def report(self) -> Report | None:
        """What it came to, once there is a guard."""
        return self.guard.report if isinstance(self.guard, ProtectedGuard) else None

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Protect the model, or take up what a checkpoint has, and attach the guard."""
        if self._is_finished:  # what the model has learned since is to be kept too
            self._source, self._is_finished = GuardInCallback(self._protected), False
        self._tokenizer = kwargs.get("processing_class")
        self._checkpoint = checkpoint_to_resume(args, state) if state.global_step > 0 else None
        super().on_train_begin(args, state, control, **kwargs)

    def on_save(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        """Write the guard's state and its own text into the checkpoint."""
        super().on_save(args, state, control, **kwargs)
        guard = self.guard
        assert isinstance(guard, ProtectedGuard)
        write_protection(guard, checkpoint_folder(args, state) / PROTECTION_FILE)

    def on_train_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Average the weights, stop holding, and report."""
        super().on_train_end(args, state, control, **kwargs)
        guard = self.guard
        assert isinstance(guard, ProtectedGuard)
        if guard.has_moved:
            report = self._finished(guard, kwargs)
            self._is_finished = True
            if state.is_world_process_zero and self._options.get("progress", True) is True:
                print(report, file=sys.stderr, flush=True)

    def _finished(self, guard: ProtectedGuard, kwargs: Mapping[str, Any]) -> Report:
        """Finish as was asked for, or by new batches, or, where there are none, without an average."""
        if self._share is not None or self._tolerance is not None:
            return guard.finish(share=self._share, tolerance=self._tolerance)
        reasons = []
        for source, batches in self._new_batches(kwargs):
            try:
                guard.finish(_with_labels(batches()))
            except (AnchorholdError, torch.OutOfMemoryError) as error:
                reasons.append(f"{source}: {error}")
                continue
            assert guard.report.weighed is not None
            guard.report = replace(guard.report, weighed=replace(guard.report.weighed, source=source))
            return guard.report
        warn(
            "Nothing was averaged at the end of training, since what that costs of the new could not be measured. "
            f"{' '.join(reasons)} Give new batches: ProtectCallback(finish_new=batches), or call "
            "callback.guard.finish(batches) now."
        )
        return guard.finish()

    def _new_batches(self, kwargs: Mapping[str, Any]) -> Iterator[tuple[str, Callable[[], Iterable[Any]]]]:
        """Yield where new batches may come from, in words, and what reads them; the best first."""
        if self._new is not None:
            given = self._new
            yield "finish_new", lambda: given
            return
        for kind in ("evaluation", "training"):
            loader = kwargs.get("eval_dataloader" if kind == "evaluation" else "train_dataloader")
            if loader is not None:
                yield f"the Trainer's {kind} data", partial(spread_batches, loader, NEW_SAMPLES)

    def _protected(self, model: nn.Module) -> Guard:
        given = self._given
        if given is None and not {"old_data", "text"} & self._options.keys():
            given = self._tokenizer
        if self._checkpoint is not None:
            folder, found = self._checkpoint
            return resume_protection(model, given, folder, found, **self._options)
        with explaining(_PROTECTING):
            return protect(model, given, **self._options)


def _with_labels(batches: Iterable[Any]) -> Iterable[Any]:
    """Return batches as they are, or refuse some whose loss is the trainer's own, which is not known."""
    found = list(check_batches(batches))
    if any(isinstance(each, Mapping) and each.get("labels") is None for each in found):
        raise BatchError(
            "Its batches have no labels, so that the loss that was trained, as of preferences or rewards, is not known."
        )
    return found


NEW_SAMPLES = 64
"""How many samples of the Trainer's data averaging is weighed by."""
_PROTECTING = (
    "This was the beginning of train(): ProtectCallback protects the model before its first step, and nothing was "
    "trained."
)
_WITHOUT_BEST = (
    "Call guard.gradients.restart_task() and protect these weights with a measure that looks at data, or train with "
    "load_best_model_at_end=False."
)
_REHEARSED = (
    "Training was stopped after its first step: Anchorhold tried on two samples of the data what it will do at the end "
    "of train(). AnchorholdCallback(guard, consolidate_at_end=batches) gives other data to measure with, "
    "consolidate_at_end=False leaves it to you, and forward=... says how the model is called with the inputs."
)
_HOW_TO_MEASURE = (
    "This was the end of train(). AnchorholdCallback(guard, forward=...) calls the model with the inputs, "
    "consolidate_at_end=batches gives other data, and consolidate_at_end=False leaves it to you. Before the next "
    "training, guard.rehearse(trainer.get_train_dataloader()) tries it on two samples."
)
