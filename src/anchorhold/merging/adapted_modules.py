"""The weights that a module with adapters stands for, each as its layers merge it themselves.

Averaging an adapter's two factors is not averaging what they make: (A₁ + A₂)(B₁ + B₂) has products of one with the
other. Layers with adapters are known by what they have, so that no library of adapters is asked for.
"""

import copy
from collections.abc import Iterator, Mapping
from typing import Any

from torch import Tensor, nn

from anchorhold.errors import ModelError


def adapted_weights(model: nn.Module) -> "dict[str, Tensor] | None":
    """Return the weights by the base model's names, adapters merged into them; ``None`` for a model without any."""
    get_base = getattr(model, "get_base_model", None)
    if callable(get_base):
        if len(getattr(model, "prompt_encoder", None) or ()):
            raise ModelError(
                f"{type(model).__name__} has learned prompts, which are no weights of the base model and cannot be "
                "merged."
            )
        model = get_base()
    if not any(map(_has_adapter, model.modules())):
        return dict(model.state_dict()) if callable(get_base) else None
    return dict(_walk(model, ""))


def _walk(module: nn.Module, path: str) -> Iterator[tuple[str, Tensor]]:
    """Yield the tensors of a module and of all in it, what belongs to adapters taken into account but not shown."""
    if _has_adapter(module):
        yield from _merged(module, path)
        return
    chosen = _instead(module)
    if chosen is not None:
        yield from _walk(chosen, path)
        return
    own: Mapping[str, Tensor] = {
        name: tensor
        for name, tensor in [*module.named_parameters(recurse=False), *module.named_buffers(recurse=False)]
        if name not in module._non_persistent_buffers_set  # noqa: SLF001 (torch has no other way to ask)
    }
    for name, tensor in own.items():
        yield f"{path}{name}", tensor.detach()
    for name, child in module.named_children():
        yield from _walk(child, f"{path}{name}.")


def _has_adapter(module: nn.Module) -> bool:
    """Whether a layer wraps another, and can merge what it adds into it."""
    return isinstance(getattr(module, "base_layer", None), nn.Module) and callable(getattr(module, "merge", None))


def _merged(layer: nn.Module, path: str) -> Iterator[tuple[str, Tensor]]:
    """Yield the tensors of a wrapped layer, changed as the adapters that are switched on change them."""
    inner: Any = layer
    if not getattr(layer, "merged", False) and not getattr(layer, "disable_adapters", False):
        inner = copy.deepcopy(layer)
        inner.merge()
    while _has_adapter(inner):
        inner = inner.base_layer
    for name, tensor in inner.state_dict().items():
        if not tensor.is_floating_point():
            raise ModelError(
                f"{path}{name} is of type {tensor.dtype}: quantised weights cannot be merged. Load the base model in "
                "16 or 32 bits."
            )
        yield f"{path}{name}", tensor


def _instead(module: nn.Module) -> nn.Module | None:
    """Return the copy of a module that was trained beside the adapters and is used in its place, if there is one."""
    original, copies = getattr(module, "original_module", None), getattr(module, "modules_to_save", None)
    if not isinstance(original, nn.Module) or not isinstance(copies, nn.ModuleDict):
        return None
    active = getattr(module, "active_adapters", None) or [getattr(module, "active_adapter", "default")]
    if getattr(module, "disable_adapters", False) or active[0] not in copies:
        return original
    return copies[active[0]]
