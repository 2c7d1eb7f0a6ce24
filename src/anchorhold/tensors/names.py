"""A model's parameters by the names that they have without any wrapper around the model or its parts.

``torch.compile``, activation checkpointing, data parallelism and weight averaging each put a module of their own in
between. What parameters are called should not depend on that: patterns would no longer match, nor states fit.
"""

from collections.abc import Callable

from torch import Tensor, nn
from torch.nn.parallel import DataParallel, DistributedDataParallel
from torch.optim.swa_utils import AveragedModel

# How torch calls the module inside torch.compile's and checkpoint_wrapper's; importing their types would take seconds.
_RESERVED = frozenset({"_orig_mod", "_checkpoint_wrapped_module"})


def named_parameters(model: nn.Module, *, remove_duplicate: bool = True) -> list[tuple[str, nn.Parameter]]:
    """Return what ``model.named_parameters`` does, with the names of the bare model."""
    bare = bare_names(model)
    return [(bare(name), p) for name, p in model.named_parameters(remove_duplicate=remove_duplicate)]


def named_buffers(model: nn.Module) -> list[tuple[str, Tensor]]:
    """Return what ``model.named_buffers`` does, with the names of the bare model."""
    bare = bare_names(model)
    return [(bare(name), buffer) for name, buffer in model.named_buffers()]


def named_modules(model: nn.Module) -> list[tuple[str, nn.Module]]:
    """Return what ``model.named_modules`` does, with the names of the bare model."""
    bare = bare_names(model)
    return [(bare(name), module) for name, module in model.named_modules()]


def has_module(model: nn.Module, kind: type | tuple[type, ...]) -> bool:
    """Return whether one of a model's modules is of a type; each type that they have is asked about once."""
    return any(issubclass(each, kind) for each in set(map(type, model.modules())))


def bare_names(model: nn.Module) -> Callable[[str], str]:
    """Return how to find a name in the bare model."""
    wrappers = (DataParallel, DistributedDataParallel, AveragedModel)
    inner: set[str] = set()
    is_wrapped = False
    for path, module in model.named_modules():
        is_wrapped = is_wrapped or not _RESERVED.isdisjoint(path.split("."))
        if isinstance(module, wrappers):
            inner.add(f"{path}.module".lstrip("."))
    if not is_wrapped and not inner:
        return str

    def bare(name: str) -> str:
        parts = name.split(".")
        kept = [i for i, part in enumerate(parts) if part not in _RESERVED and ".".join(parts[: i + 1]) not in inner]
        return ".".join(parts[i] for i in kept)

    return bare
