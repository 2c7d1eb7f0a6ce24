"""A callback for Hugging Face's Trainer, and so for all trainers that are made from it, such as TRL's.

>>> guard = holdfast.Consolidator(model, holdfast.SOS(), strength=100.0)
>>> trainer = Trainer(model, args, train_dataset=..., callbacks=[HoldfastCallback(guard)])
"""

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from torch.optim import Optimizer

from holdfast.consolidation import Consolidator
from holdfast.errors import ConfigurationError, MissingExtraError, StateError
from holdfast.importance.batches import Forward
from holdfast.integrations.checkpoints import STATE_NAME
from holdfast.integrations.guards import checked_guard
from holdfast.integrations.processes import join_processes
from holdfast.integrations.statistics import statistics

try:
    from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments
    from transformers.trainer import TRAINER_STATE_NAME
    from transformers.trainer_utils import PREFIX_CHECKPOINT_DIR
except ImportError as error:
    raise MissingExtraError(
        "The callback for Hugging Face's Trainer needs transformers and accelerate, and one of them is not installed: "
        "pip install 'holdfast[huggingface]'"
    ) from error


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
        self.consolidate_at_end = consolidate_at_end
        self.forward = forward

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Take over the checkpoint's state, if training resumes from one, and attach the optimiser."""
        if state.global_step > 0:
            self.guard.load(_resumed_from(args, state) / STATE_NAME)
        join_processes(self.guard)
        optimizer: Optimizer = kwargs["optimizer"]
        # The state is new for every train(), and all that callbacks have in common.
        if vars(state).setdefault("holdfast_guard", self.guard) is not self.guard:
            raise ConfigurationError(
                f"The Trainer has two callbacks of type {type(self).__name__} with different guards, whose states "
                "would go to one file of a checkpoint. Give it one; a guard takes several measures: watch=[...]."
            )
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
        self.guard.save(_checkpoint(args, state) / STATE_NAME)

    def on_train_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """End the task, if there was one."""
        if self.consolidate_at_end is False or self.guard.path.steps == 0:
            return
        batches = kwargs["train_dataloader"] if self.consolidate_at_end is True else self.consolidate_at_end
        self.guard.consolidate(batches, forward=self.forward)


def _checkpoint(args: TrainingArguments, state: TrainerState) -> Path:
    """Return the folder where the Trainer keeps the checkpoint of this step."""
    return Path(str(args.output_dir)) / f"{PREFIX_CHECKPOINT_DIR}-{state.global_step}"


def _resumed_from(args: TrainingArguments, state: TrainerState) -> Path:
    """Return the checkpoint that training resumed from, which the Trainer does not tell its callbacks.

    A folder of the right name may be another run's; the Trainer's state in it tells.
    """
    given = args.resume_from_checkpoint
    candidates = [Path(given)] if given else []
    candidates.append(_checkpoint(args, state))
    for folder in candidates:
        if (folder / STATE_NAME).is_file() and _history(folder) == json.dumps(state.log_history):
            return folder
    wanted = candidates[0] / STATE_NAME
    raise StateError(
        f"Training resumes at step {state.global_step}, and there is no guard's state of this run at {str(wanted)!r}. "
        "If the checkpoint lies elsewhere, name its folder in TrainingArguments(resume_from_checkpoint=...). If it was "
        f"made without this callback, write a state into it: guard.save(folder / {STATE_NAME!r})."
    )


def _history(folder: Path) -> str | None:
    path = folder / TRAINER_STATE_NAME
    return json.dumps(TrainerState.load_from_json(str(path)).log_history) if path.is_file() else None
