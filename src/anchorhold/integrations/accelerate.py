"""A guard in a loop of Hugging Face's Accelerate.

>>> model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
>>> guard = anchorhold.Guard(model, anchorhold.SOS(), strength=100.0)
>>> prepare_guard(accelerator, guard, optimizer)
"""

import os
from pathlib import Path
from typing import Any
from weakref import WeakKeyDictionary

from torch.optim import Optimizer

from anchorhold.errors import MissingExtraError, StateError
from anchorhold.guard import Guard
from anchorhold.integrations.callbacks import STATE_NAME, checked_guard, join_processes, state_file, statistics

try:
    from accelerate.accelerator import Accelerator
except ImportError as error:
    raise MissingExtraError(
        "A guard in an Accelerate loop needs accelerate, which is not installed: pip install 'anchorhold[huggingface]'"
    ) from error


def log_guard(accelerator: Accelerator, guard: Guard, step: int | None = None) -> None:
    """Give an accelerator's trackers the penalty, importances, and what was last seen of kept inputs.

    Args:
        accelerator: whose ``init_trackers`` was called.
        guard: the Guard; every process calls this.
        step: of the training.
    """
    accelerator.log(statistics(checked_guard(guard)), step=step)


_prepared: WeakKeyDictionary[Accelerator, list[Guard]] = WeakKeyDictionary()
"""The guards whose states go into an accelerator's checkpoints, in their order."""


def prepare_guard(accelerator: Accelerator, guard: Guard, *optimizers: Optimizer) -> None:
    """Attach a guard to prepared optimizers, and keep its state with the accelerator's checkpoints.

    ``accelerator.save_state(folder)`` then writes it beside the model's, and ``load_state(folder)`` reads it: as
    safetensors, where ``register_for_checkpointing`` would write a pickle. Where there are several guards, prepare them
    in the same order each time. For a new optimizer, call it again with the same guard.

    Args:
        accelerator: the accelerator that prepared the optimizers.
        guard: the Guard of the model, as it is or prepared.
        optimizers: every optimizer that trains protected parameters.
    """
    join_processes(checked_guard(guard))
    guard.attach(*optimizers)
    prepared = _prepared.setdefault(accelerator, [])
    if any(guard is known for known in prepared):
        return
    # As Accelerate calls its own files: model.safetensors, model_1.safetensors, …
    name = STATE_NAME if not prepared else f"_{len(prepared)}.".join(STATE_NAME.rsplit(".", 1))
    prepared.append(guard)

    def save(_models: list[Any], _weights: list[Any], folder: str | os.PathLike[str]) -> None:
        guard.save(Path(folder) / name)

    def load(_models: list[Any], folder: str | os.PathLike[str]) -> None:
        path = state_file(Path(folder), name)
        if not path.is_file():
            raise StateError(
                f"There is no guard's state at {str(path)!r}: the checkpoint was made without prepare_guard(). Nothing "
                "was loaded. Write the state that belongs to it there, guard.save(path), or call load_state() before "
                "prepare_guard()."
            )
        guard.load(path)

    accelerator.register_save_state_pre_hook(save)
    accelerator.register_load_state_pre_hook(load)
