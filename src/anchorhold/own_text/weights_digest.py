"""Telling whether a model is the one that wrote a text: a digest of all that its outputs depend on."""

import hashlib

import torch
from torch import Tensor, nn

from anchorhold.errors import ModelError
from anchorhold.tensors.sharding import is_sharded


def weights_digest(model: nn.Module) -> str:
    """Return a digest of a model's weights and saved buffers, by name, and of the adapters that are in use."""
    digest = hashlib.sha256()
    for name, value in model.state_dict().items():
        if isinstance(value, Tensor):
            digest.update(f"{name} {value.dtype} {tuple(value.shape)}\n".encode())
            digest.update(_content(name, value))
    for name, module in model.named_modules():
        # PEFT can switch adapters off, or others on, without touching a weight.
        off, active = (getattr(module, own, None) for own in ("disable_adapters", "active_adapters"))
        if isinstance(off, bool) and isinstance(active, list):
            digest.update(f"{name} {off} {active}\n".encode())
    return digest.hexdigest()


def _content(name: str, value: Tensor) -> memoryview:
    if is_sharded(value):
        raise ModelError(
            f"{name} is spread over several processes, so no process can tell whose text a folder holds. Write the "
            "text before the model is sharded, or without store=."
        )
    whole = value.detach().cpu().contiguous().reshape(-1)
    return whole.view(torch.uint8).numpy().data
