"""A guard in a loop of Hugging Face's Accelerate.

>>> model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
>>> guard = holdfast.Consolidator(model, holdfast.SOS(), strength=100.0)
>>> prepare_guard(accelerator, guard, optimizer)
"""

import os
from pathlib import Path
from typing import Any

from torch.optim import Optimizer

from holdfast.consolidation import Consolidator
from holdfast.errors import MissingExtraError
from holdfast.integrations.checkpoints import STATE_NAME
from holdfast.integrations.processes import join_processes

try:
    from accelerate.accelerator import Accelerator
except ImportError as error:
    raise MissingExtraError(
        "A guard in an Accelerate loop needs accelerate, which is not installed: pip install 'holdfast[huggingface]'"
    ) from error


def prepare_guard(accelerator: Accelerator, guard: Consolidator, *optimizers: Optimizer) -> None:
    """Attach a guard to prepared optimisers, and keep its state with the accelerator's checkpoints.

    ``accelerator.save_state(folder)`` then writes it beside the model's, and ``load_state(folder)`` reads it: as
    safetensors, where ``register_for_checkpointing`` would write a pickle.

    Args:
        accelerator: the accelerator that prepared the optimisers.
        guard: the Consolidator of the model, as it is or prepared.
        optimizers: every optimiser that trains protected parameters.
    """
    join_processes(guard)
    guard.attach(*optimizers)

    def save(_models: list[Any], _weights: list[Any], folder: str | os.PathLike[str]) -> None:
        guard.save(Path(folder) / STATE_NAME)

    def load(_models: list[Any], folder: str | os.PathLike[str]) -> None:
        guard.load(Path(folder) / STATE_NAME)

    accelerator.register_save_state_pre_hook(save)
    accelerator.register_load_state_pre_hook(load)
