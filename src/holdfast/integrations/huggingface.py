"""A callback for Hugging Face's Trainer, and so for all trainers that are made from it, such as TRL's.

>>> guard = holdfast.Consolidator(model, holdfast.SOS(), strength=100.0)
>>> trainer = Trainer(model, args, train_dataset=..., callbacks=[HoldfastCallback(guard)])
"""

import secrets
from collections.abc import Iterable
from pathlib import Path
from typing import Any, cast

from torch.optim import Optimizer

from holdfast.errors import ConfigurationError, MissingExtraError, StateError
from holdfast.guard import Consolidator, state_files
from holdfast.guard.distributed.ranks import Ranks
from holdfast.integrations.callbacks import (
    STATE_NAME,
    TRAINED,
    checked_end,
    checked_guard,
    explaining,
    join_processes,
    refuse_endless_data,
    statistics,
)
from holdfast.persample.batches import Forward

try:
    from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments
    from transformers.trainer import TRAINER_STATE_NAME
    from transformers.trainer_utils import PREFIX_CHECKPOINT_DIR, has_length
except ImportError as error:
    raise MissingExtraError(
        "The callback for Hugging Face's Trainer needs transformers and accelerate, and one of them is not installed: "
        "pip install 'holdfast[huggingface]'"
    ) from error

_MARK = "holdfast"
"""Where the Trainer's state says which ``train()`` it is of; and in a guard's file, which checkpoint."""


class HoldfastCallback(TrainerCallback):
    """Lets a Consolidator watch, and hold back, every optimiser step of a Trainer.

    It attaches the guard to the optimiser, ends a task at the end of each ``train()``, and adds ``holdfast/penalty``,
    ``holdfast/importance_mean`` and the like to the Trainer's logs. The guard's state is written into each of the
    Trainer's checkpoints, and read again when training resumes from one.

    Args:
        guard: the Consolidator of the model that is trained.
        consolidate_at_end: whether the end of training is the end of a task: ``True`` to consolidate then, with the
            training data where the measure looks at data; or the batches to do so with, such as a DataLoader.
        forward: how the model is called while it is measured, as in :meth:`holdfast.Consolidator.consolidate`.
    """

    def __init__(
        self, guard: Consolidator, consolidate_at_end: bool | Iterable[Any] = True, forward: Forward | None = None
    ) -> None:
        self.guard = checked_guard(guard)
        self.consolidate_at_end = checked_end(consolidate_at_end)
        self.forward = forward

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Take over the checkpoint's state, if training resumes from one, and attach the optimiser."""
        # The state is new for every train(), and all that callbacks have in common.
        met = vars(state).get("holdfast_guard")
        if met not in (None, self.guard):
            raise ConfigurationError(
                f"The Trainer has two callbacks of type {type(self).__name__} with different guards, whose states "
                "would go to one file of a checkpoint. Give it one; a guard takes several measures: watch=[...]."
            )
        if self.consolidate_at_end is True and not has_length(kwargs["train_dataloader"]):
            refuse_endless_data(
                self.guard,
                "or give the batches to measure with: HoldfastCallback(guard, consolidate_at_end=batches), or False to "
                "leave it",
            )
        if met is None:
            if state.global_step > 0:
                self.guard.load_state_dict(_state_to_resume(args, state))
            vars(state)["holdfast_guard"] = self.guard
            _notes(state)[_MARK] = {"args": {}, "attributes": {"run": secrets.token_hex(8)}}
        join_processes(self.guard)
        optimizer: Optimizer = kwargs["optimizer"]
        self.guard.attach(optimizer)

    def on_log(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        """Add the penalty and the importances to what is logged during training."""
        logs: dict[str, Any] = kwargs["logs"]
        if "loss" in logs:
            found = statistics(self.guard)
            logs.update(found)
            state.log_history[-1].update(found)  # the Trainer has already written its own copy there

    def on_save(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        """Write the guard's state into the checkpoint."""
        marked = {**self.guard.state_dict(), _MARK: _mark(state)}
        state_files.write(_checkpoint(args, state) / STATE_NAME, marked, Ranks(self.guard.group))

    def on_train_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """End the task, if there was one."""
        if self.consolidate_at_end is False or self.guard.path.steps == 0:
            return
        batches = kwargs["train_dataloader"] if self.consolidate_at_end is True else self.consolidate_at_end
        with explaining(_HOW_TO_MEASURE, TRAINED):
            self.guard.consolidate(batches, forward=self.forward)


_HOW_TO_MEASURE = (
    "This was the end of train(). HoldfastCallback(guard, forward=...) calls the model with the inputs, "
    "consolidate_at_end=batches gives other data, and consolidate_at_end=False leaves it to you. Before the next "
    "training, guard.rehearse(trainer.get_train_dataloader()) tries it on two samples."
)


def _checkpoint(args: TrainingArguments, state: TrainerState) -> Path:
    """Return the folder where the Trainer keeps the checkpoint of this step."""
    return Path(str(args.output_dir)) / f"{PREFIX_CHECKPOINT_DIR}-{state.global_step}"


def _notes(state: TrainerState) -> dict[str, Any]:
    """Return what callbacks write into the Trainer's state; it takes a list of them, and makes a mapping of it."""
    return cast("dict[str, Any]", state.stateful_callbacks)


def _mark(state: TrainerState) -> str | None:
    """Return what tells the checkpoint of this state from all others, or ``None`` if it was made without a guard."""
    run = _notes(state).get(_MARK)
    return None if run is None else f"{run['attributes']['run']}-{state.global_step}"


def _state_to_resume(args: TrainingArguments, state: TrainerState) -> dict[str, Any]:
    """Return the guard's state in the checkpoint that training resumes from, which the Trainer does not name to us.

    The Trainer has read its own state from there, so the folder is the one that holds the same.
    """
    given = args.resume_from_checkpoint
    candidates = [Path(given)] if given else []
    candidates.append(_checkpoint(args, state))
    for folder in candidates:
        path = folder / STATE_NAME
        if not path.is_file() or not _is_of(state, folder, named=bool(given) and folder == candidates[0]):
            continue
        found = state_files.read(path)
        if _MARK in found and found[_MARK] != _mark(state):
            raise StateError(
                f"The guard's state at {str(path)!r} is not that of the Trainer's state beside it, but of another run "
                "or step: the checkpoint was written over, and that was interrupted, or files were copied into it. "
                "Resume from another checkpoint."
            )
        return found
    wanted = candidates[0] / STATE_NAME
    if wanted.is_file() and not given and _mark(state) is None and not state.log_history:
        raise StateError(
            f"Training resumes at step {state.global_step}, and whether the guard's state at {str(wanted)!r} is of "
            "this run cannot be told: the checkpoint has neither this callback's mark nor logs. If it is, name its "
            "folder in TrainingArguments(resume_from_checkpoint=...)."
        )
    raise StateError(
        f"Training resumes at step {state.global_step}, and there is no guard's state of this run at {str(wanted)!r}. "
        "If the checkpoint lies elsewhere, name its folder in TrainingArguments(resume_from_checkpoint=...). If it was "
        f"made without this callback, write a state into it, guard.save(folder / {STATE_NAME!r}), and name it there."
    )


def _is_of(state: TrainerState, folder: Path, *, named: bool) -> bool:
    """Whether a checkpoint holds this state of the Trainer.

    One that was made without a guard has no mark: it is told by its logs, and without any only by being named.
    """
    path = folder / TRAINER_STATE_NAME
    if not path.is_file():
        return False
    there = TrainerState.load_from_json(str(path))
    if _mark(there) is not None or _mark(state) is not None:
        return _mark(there) == _mark(state)
    same = (there.global_step, there.log_history) == (state.global_step, state.log_history)
    return same and (named or bool(state.log_history))
