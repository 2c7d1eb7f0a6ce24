"""A callback for Lightning's Trainer, of either package: ``lightning`` or ``pytorch_lightning``.

>>> guard = anchorhold.Guard(module, anchorhold.SOS(), strength=100.0)
>>> for task in tasks:
...     L.Trainer(callbacks=[AnchorholdCallback(guard)]).fit(module, task)
"""

import copy
import itertools
import math
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from multiprocessing.context import get_spawning_popen
from typing import Any, NoReturn

from anchorhold.engine.batches import Forward, check_batches
from anchorhold.errors import AnchorholdWarning, BatchError, ConfigurationError, MissingExtraError, OrderError, warn
from anchorhold.guard import Guard, TaskImportance, may_attach
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
    of_another_trainer,
    refuse_endless_data,
    resume_task_free,
    sample_limits,
    statistics,
    task_free_state,
)
from anchorhold.seeding import undisturbed
from anchorhold.task_free import TaskFree

try:
    from lightning.pytorch import Callback, LightningModule, Trainer
except ImportError:
    try:  # the same code under its other name
        from pytorch_lightning import Callback, LightningModule, Trainer  # type: ignore[assignment]
    except ImportError as error:
        raise MissingExtraError(
            "The callback for Lightning's Trainer needs lightning, which is not installed: "
            "pip install 'anchorhold[lightning]'"
        ) from error


class AnchorholdCallback(Callback):
    """Lets a Guard watch, and hold back, every optimizer step of a Lightning Trainer.

    It attaches the guard to those of the module's optimizers that train protected parameters, ends a task at the end
    of each fit, logs ``anchorhold/penalty``, ``anchorhold/importance_mean`` and the like, and keeps the guard's state
    in Lightning's checkpoints.

    Args:
        guard: the Guard of the module (or of a network inside it), or a function that makes one from the
            module when training starts, for modules that build their layers in ``configure_model``.
        consolidate_at_end: whether the end of a fit is the end of a task: ``True`` to consolidate then, with the
            training data where the measure looks at data; or the batches to do so with, such as a DataLoader.
        prepare: from a batch of the DataLoader to what :meth:`anchorhold.Guard.consolidate` reads: inputs,
            ``(inputs, targets)`` or a mapping with ``"labels"``. Needed where batches have another form.
        forward: how the module is called while it is measured, ``forward(module, inputs)``; by default
            ``module(inputs)``, so by its ``forward``.
        stop_at: stop training once more nats than that are lost of the worst set that ``guard.keep`` was given, at
            three looks in a row; ``stop.stopped_at`` says what was lost then.
        best_within: log ``val_within_loss`` beside a ``val_loss`` that the module logs: the same where no more nats
            than that are lost of the worst kept set, for ``ModelCheckpoint(monitor="val_within_loss")``.
        share: of the way from the anchor to where training has ended, that weights keep when it ends, as by
            :meth:`anchorhold.Guard.average`. In a first task, which has no anchor, they keep all.
        task_free: consolidates by itself on the way, as it is told of every batch: a :class:`anchorhold.TaskFree` of
            the same guard. ``consolidate_at_end=False`` leaves it at that.
    """

    def __init__(
        self,
        guard: Guard | Callable[[LightningModule], Guard],
        consolidate_at_end: bool | Iterable[Any] = True,
        *,
        prepare: Callable[[Any], Any] | None = None,
        forward: Forward | None = None,
        stop_at: float | None = None,
        best_within: float | None = None,
        share: float | None = None,
        task_free: TaskFree | None = None,
    ) -> None:
        super().__init__()
        self.task_free = checked_task_free(task_free, guard)
        self.stop = StopAt(stop_at)
        self.best = BestWithin(best_within)
        self.share = checked_share_at_end(share)
        self._source = GuardInCallback(guard, consolidate_at_end)
        self._restored: Mapping[str, Any] | None = None
        self._only_evaluating = False
        self._waits = False
        self._idle = False
        self._to_rehearse = False
        self._first_batch: Any = None
        self._before_validation: dict[str, Any] = {}
        self.consolidate_at_end = checked_end(consolidate_at_end)
        self.prepare = prepare
        self.forward = forward

    @property
    def guard(self) -> Guard:
        """The Guard; one that a function makes is there from the start of training on."""
        return self._source.guard

    def consolidate(
        self, trainer: Trainer, batches: Iterable[Any] | None = None, *, share: float | None = None
    ) -> dict[str, TaskImportance]:
        """End a task now: for tasks that end within a fit, or after one with ``consolidate_at_end=False``.

        Args:
            trainer: the Trainer, which knows how batches come to the device.
            batches: the data to measure with; by default the training data of the fit.
            share: of the way from the anchor, that weights keep; by default all of it.

        Returns:
            What each measure found for this task, by the measure's name.
        """
        if not hasattr(trainer, "lightning_module"):
            raise ConfigurationError(
                f"consolidate() was given a {type(trainer).__name__} as the trainer; expected a Trainer first, then "
                "batches: consolidate(trainer, batches)."
            )
        with undisturbed():  # training may go on after this
            found = self.guard.consolidate(self._batches(trainer, batches), forward=self.forward, share=share)
        for logger in trainer.loggers:
            logger.log_metrics(statistics(self.guard), step=trainer.global_step)
        return found

    @property
    def on_init_end(self) -> NoReturn:
        """What Hugging Face's Trainer looks up first."""
        raise of_another_trainer("Hugging Face's Trainer", "huggingface")

    # What Lightning calls

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Refuse a fit in processes that end with it, and the guard's state with them."""
        self._idle = stage == "fit"
        # Lightning's own name for those who start such processes; their class is not public.
        kinds = {kind.__name__ for kind in type(trainer.strategy.launcher).__mro__}
        if stage == "fit" and "_MultiProcessingLauncher" in kinds:
            raise ConfigurationError(_OTHER_PROCESSES)

    def __getstate__(self) -> object:
        """Refuse to be sent to such processes; copies are for others to make."""
        if get_spawning_popen() is not None:
            raise ConfigurationError(_OTHER_PROCESSES)
        return super().__getstate__()

    def on_fit_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Say so where Lightning has left out training, as it does without a word."""
        if self._idle:
            warn(_NO_TRAINING.format(epoch=trainer.current_epoch, most=trainer.max_epochs, step=trainer.global_step))

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Attach the fit's optimizers, which are new for every fit."""
        self._idle = False
        guard = self._source.made_from(pl_module)
        if self._restored is not None:
            guard.load_state_dict(self._restored)
            self._restored = None
        guard.detach()
        self.stop.begin(guard)
        self.best.begin(guard)
        monitored = [name for each in trainer.checkpoint_callbacks if (name := getattr(each, "monitor", None))]
        self.best.check_search(monitored, 'ModelCheckpoint(monitor="val_within_loss")')
        join_processes(guard)
        guard.refresh()
        self._to_rehearse = self.consolidate_at_end is True and bool(sample_limits(guard))
        if self._to_rehearse:
            self._training_data(trainer)  # what the end would refuse is better refused now
        self._waits = False
        if not self._attach(trainer):
            self._waits = not any(parameter.requires_grad for parameter in guard.parameters.values())
            if not self._waits:
                guard.attach(*trainer.optimizers)  # what is wrong with them is the guard's to tell

    def on_train_batch_start(self, trainer: Trainer, pl_module: LightningModule, batch: Any, batch_idx: int) -> None:
        """Attach optimizers that are given what the guard protects only now, as ``BackboneFinetuning`` does."""
        if self._waits:
            self._waits = not self._attach(trainer)
        if self._to_rehearse and not self._waits:
            try:
                self._first_batch = copy.deepcopy(batch)  # the training step may take it to pieces
            except Exception:  # noqa: BLE001 (whatever cannot be copied; the end will see it as it is)
                self._to_rehearse = False

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Log the penalty and the importances, as often as Lightning logs, and rehearse the end after the first batch.

        What the module sets up by its first step is then there.
        """
        if self._to_rehearse and not self._waits:
            self._to_rehearse, first, self._first_batch = False, self._first_batch, None
            with explaining(_REHEARSED, _HOW_TO_MEASURE):
                self.guard.rehearse([first if self.prepare is None else self.prepare(first)], forward=self.forward)
        if self.task_free is not None and isinstance(outputs, Mapping) and "loss" in outputs:
            with undisturbed():  # training goes on after this
                self.task_free.step(outputs["loss"], batch if self.prepare is None else self.prepare(batch))
        if self.stop.is_beyond(self.guard):
            trainer.should_stop = True
        often: int = getattr(trainer, "log_every_n_steps", 0)
        if often and trainer.global_step % often == 0:
            pl_module.log_dict(statistics(self.guard), on_step=True, on_epoch=False)

    def on_validation_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Remember which metrics are of before."""
        self._before_validation = dict(trainer.callback_metrics)

    def on_validation_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Log what a validation in training is worth with what is lost, before checkpoints are compared by it."""
        if trainer.state.fn != "fit" or trainer.sanity_checking or self.best.limit is None:
            return
        metrics = {name: value for name, value in trainer.callback_metrics.items() if name.startswith("val")}
        # What is not of this validation is the same object as before it.
        fresh = {name: value for name, value in metrics.items() if value is not self._before_validation.get(name)}
        found = self.best.scores(fresh, self.guard)
        if not found:
            raise ConfigurationError(
                f"best_within={self.best.limit:g}, and in this validation no loss was logged before callbacks look at "
                'it. Log one in validation_step: self.log("val_loss", loss), with add_dataloader_idx=False where there '
                "are several DataLoaders."
            )
        pl_module.log_dict(found)

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """End the task, unless no step was taken since the last one ended."""
        self.best.tell_of_the_end()
        share = self.share if self.guard.tasks and self.guard.gradients.path.steps else None
        if self.consolidate_at_end is not False and self.guard.gradients.path.steps:
            batches = None if self.consolidate_at_end is True else self.consolidate_at_end
            with explaining(_HOW_TO_MEASURE, TRAINED):
                self.consolidate(trainer, batches, share=share)
        elif self.consolidate_at_end is False:
            end_within_tolerance(self.guard, share)

    @property
    def state_key(self) -> str:
        """Return the key of the guard's state in a checkpoint, by which version 0.1.0 wrote and read it too."""
        return type(self).__qualname__.replace("AnchorholdCallback", "HoldfastCallback")

    def on_load_checkpoint(self, trainer: Trainer, pl_module: LightningModule, checkpoint: dict[str, Any]) -> None:
        """Notice a checkpoint that knows nothing of the guard, and one that is loaded for its weights alone.

        Lightning gives callbacks their states also when ``test()`` or ``validate()`` loads a checkpoint, which may be
        from before the task was consolidated.
        """
        self._idle = False  # one of a finished fit is as it should be
        self._only_evaluating = trainer.state.fn != "fit"
        if not self._only_evaluating and self.state_key not in checkpoint.get("callbacks", {}):
            warnings.warn(
                "The checkpoint was made without this callback, so the guard goes on with what it had before: give it "
                "the state that belongs to these weights, guard.load(path), or consolidate from data.",
                AnchorholdWarning,
                stacklevel=2,
            )

    def state_dict(self) -> dict[str, Any]:
        """Return the guard's state, with that of task_free: plain values and tensors, for ``weights_only=True`` too."""
        return self.guard.state_dict() | task_free_state(self.task_free) if self._source.is_there else {}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Take over the guard's state, now or as soon as there is a guard, if training goes on from it."""
        if self._only_evaluating:
            self._only_evaluating = False
        elif self._source.is_there:
            self.guard.load_state_dict(state_dict)
            if self.task_free is not None:
                resume_task_free(self.task_free, state_dict)
        else:
            self._restored = state_dict

    def _attach(self, trainer: Trainer) -> bool:
        """Attach the optimizers that train what the guard protects, if there are any."""
        owning = [optimizer for optimizer in trainer.optimizers if may_attach(self.guard, optimizer)]
        if owning:
            self.guard.attach(*owning)
        return bool(owning)

    def _batches(self, trainer: Trainer, batches: Iterable[Any] | None) -> Iterable[Any]:
        """Return batches as the module's training step would get them, in the form that measures and holds read.

        They can be gone through more than once, wherever those that are given can.
        """
        if trainer.lightning_module is None:
            raise OrderError(
                "The Trainer has not met its module yet. Call this during or after fit(); guard.consolidate(batches) "
                "needs no Trainer."
            )
        if batches is None:
            given, count = self._training_data(trainer)
            return _Converted(given, count, partial(self._converted, trainer))
        if iter(check_batches(batches)) is batches:
            return (self._converted(trainer, batch) for batch in batches)
        return _Converted(batches, None, partial(self._converted, trainer))

    def _converted(self, trainer: Trainer, batch: Any) -> Any:
        converted = trainer.precision_plugin.convert_input(batch)
        converted = trainer.lightning_module._on_before_batch_transfer(converted)  # noqa: SLF001 (and its own order)
        converted = trainer.strategy.batch_to_device(converted)
        return converted if self.prepare is None else self.prepare(converted)

    def _training_data(self, trainer: Trainer) -> tuple[Iterable[Any], int | None]:
        """Return the training data and how many of its batches to take, or refuse what cannot be measured with."""
        given, count = trainer.train_dataloader, trainer.num_training_batches
        if given is None or isinstance(given, list | tuple | Mapping):
            what = "no training data" if given is None else f"a {type(given).__name__} of training DataLoaders"
            raise BatchError(
                f"The Trainer has {what}; expected one DataLoader to measure with. Give the batches: {_AS_BATCHES}."
            )
        if not math.isinf(count):
            return given, int(count)  # with limit_train_batches, fewer than there are
        refuse_endless_data(self.guard, f"set limit_train_batches, or give the batches: {_AS_BATCHES}")
        return given, None


class _Converted:
    """Batches, the first so many of them, each as a function makes it."""

    def __init__(self, batches: Iterable[Any], count: int | None, convert: Callable[[Any], Any]) -> None:
        self._batches, self._count, self._convert = batches, count, convert

    def __iter__(self) -> Iterator[Any]:
        return map(self._convert, itertools.islice(self._batches, self._count))


_AS_BATCHES = "AnchorholdCallback(guard, consolidate_at_end=batches) or consolidate(trainer, batches)"
_REHEARSED = "After the first batch, Anchorhold tried on two of its samples what it will do at the end of fit()."
_HOW_TO_MEASURE = (
    "AnchorholdCallback(guard, prepare=...) makes inputs or (inputs, targets) of a batch, forward=... calls the module "
    "with the inputs, consolidate_at_end=batches gives other data, and consolidate_at_end=False leaves it to you."
)
_NO_TRAINING = (
    "fit() took no step, so that nothing was learned and no task has ended: the Trainer is at epoch {epoch} of "
    "max_epochs={most} and step {step}, those of earlier fits among them, or has no training batches. Make a new "
    "Trainer for each task."
)
_OTHER_PROCESSES = (
    "This strategy (ddp_spawn, ddp_notebook and the like) fits a copy of the module and of the guard in other "
    "processes, and what the guard learns there would be lost with them. Use strategy='ddp', which starts the script "
    "once for each device; in a notebook, one device."
)
