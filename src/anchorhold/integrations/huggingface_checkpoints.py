"""A guard's state in the checkpoints of Hugging Face's Trainer: where it lies, and whether it belongs there.

Each ``train()`` leaves a mark in the Trainer's state and in the guard's file, so that the state of another run is never
taken for this one's.
"""

import secrets
from pathlib import Path
from typing import Any, cast

from torch import Tensor
from transformers import TrainerState, TrainingArguments
from transformers.trainer import TRAINER_STATE_NAME
from transformers.trainer_utils import PREFIX_CHECKPOINT_DIR

from anchorhold.errors import StateError
from anchorhold.guard import Guard
from anchorhold.guard.distributed.ranks import Ranks
from anchorhold.guard.state import files as state_files
from anchorhold.integrations.callbacks import STATE_NAME, state_file, task_free_state
from anchorhold.task_free import TaskFree
from anchorhold.tensors.sharding import is_sharded
from anchorhold.tensors.summaries import checksum, earlier_checksum

_MARK = "holdfast"
"""Where the Trainer's state says which ``train()`` it is of; and in a guard's file, which checkpoint."""

_WEIGHTS = "holdfast_weights"
"""Where a guard's file says which weights it was written beside."""


def begin_run(state: TrainerState) -> None:
    """Mark the Trainer's state as that of a ``train()`` of its own, which may go on from earlier ones."""
    attributes = {"run": secrets.token_hex(8)}
    earlier = _runs(state)
    _notes(state)[_MARK] = {"args": {}, "attributes": attributes | ({"earlier": earlier} if earlier else {})}


def write_state(args: TrainingArguments, state: TrainerState, guard: Guard, task_free: TaskFree | None = None) -> None:
    """Write the guard's state into the checkpoint that the Trainer has just made, with that of its task_free."""
    weights = _weights(guard)
    marked = {**guard.state_dict(), _MARK: _mark(state)} | ({} if weights is None else {_WEIGHTS: checksum(weights)})
    path = checkpoint_folder(args, state) / STATE_NAME
    state_files.write(path, marked | task_free_state(task_free), Ranks(guard.options.group))


def checkpoint_to_resume(args: TrainingArguments, state: TrainerState) -> tuple[Path, dict[str, Any]]:
    """Return the checkpoint that training resumes from, which the Trainer does not name to us, and the guard's state.

    The Trainer has read its own state from there, so the folder is the one that holds the same.
    """
    given = args.resume_from_checkpoint
    candidates = [Path(given)] if given else []
    candidates.append(checkpoint_folder(args, state))
    for folder in candidates:
        path = state_file(folder)
        if not path.is_file() or not _is_of(state, folder, named=bool(given) and folder == candidates[0]):
            continue
        found = state_files.read(path)
        if _MARK in found and found[_MARK] != _mark(state):
            raise StateError(_written_over(path))
        return folder, found
    wanted = state_file(candidates[0])
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


def state_of_best(state: TrainerState, guard: Guard) -> dict[str, Any]:
    """Return the guard's state in the best checkpoint, whose weights the Trainer has just loaded."""
    folder = Path(str(state.best_model_checkpoint))
    path = state_file(folder)
    beside = folder / TRAINER_STATE_NAME
    if not path.is_file() or not beside.is_file():
        raise StateError(f"The best checkpoint, whose weights were loaded, has no guard's state at {str(path)!r}.")
    there = TrainerState.load_from_json(str(beside))
    found = state_files.read(path)
    if found.get(_MARK) != _mark(there):
        raise StateError(_written_over(path))
    if _runs(there) and _runs(there)[-1] not in _runs(state):
        raise StateError(f"The guard's state at {str(path)!r}, in the best checkpoint, is of another run.")
    weights, known = _weights(guard), found.get(_WEIGHTS)
    if not (weights is None or known is None or known in (checksum(weights), earlier_checksum(weights))):
        raise StateError(
            f"The model's weights are not those of the best checkpoint, {str(folder)!r}: the Trainer has not loaded "
            "them, or they were changed since."
        )
    return found


def _weights(guard: Guard) -> list[Tensor] | None:
    """Return the protected weights, by which they are told from others; of a sharded model no process has them all."""
    weights: list[Tensor] = [parameter.detach() for _, parameter in sorted(guard.parameters.items())]
    return None if any(map(is_sharded, weights)) else weights


def _written_over(path: Path) -> str:
    return (
        f"The guard's state at {str(path)!r} is not that of the Trainer's state beside it, but of another run or step: "
        "the checkpoint was written over, and that was interrupted, or files were copied into it. Resume from another "
        "checkpoint."
    )


def checkpoint_folder(args: TrainingArguments, state: TrainerState) -> Path:
    """Return the folder where the Trainer keeps the checkpoint of this step.

    Each trial of a search has a folder of its own, whose name the Trainer does not tell.
    """
    output, name = Path(str(args.output_dir)), f"{PREFIX_CHECKPOINT_DIR}-{state.global_step}"
    if state.is_hyper_param_search:
        for folder in sorted(output.glob(f"*/{name}")):
            if _is_of(state, folder, named=False):
                return folder
    return output / name


def _notes(state: TrainerState) -> dict[str, Any]:
    """Return what callbacks write into the Trainer's state; it takes a list of them, and makes a mapping of it."""
    return cast("dict[str, Any]", state.stateful_callbacks)


def _runs(state: TrainerState) -> list[str]:
    """Return the marks of all runs that have led to a state, the last one last."""
    attributes = _notes(state).get(_MARK, {"attributes": {}})["attributes"]
    return [*attributes.get("earlier", []), *([attributes["run"]] if "run" in attributes else [])]


def _mark(state: TrainerState) -> str | None:
    """Return what tells the checkpoint of this state from all others, or ``None`` if it was made without a guard."""
    runs = _runs(state)
    return f"{runs[-1]}-{state.global_step}" if runs else None


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
