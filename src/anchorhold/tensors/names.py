"""A model's parameters by the names that they have without any wrapper around the model or its parts.

``torch.compile``, activation checkpointing, data parallelism and weight averaging each put a module of their own in
between. What parameters are called should not depend on that: patterns would no longer match, nor states fit.
"""

from collections.abc import Callable

from torch import Tensor, nn
from torch.nn.parallel import DataParallel, DistributedDataParallel
from torch.optim.swa_utils import AveragedModel

# How torch calls the module inside torch.compile's and checkpoint_wrapper's; importing their types would take seconds.
_RESERVED = ("_orig_mod", "_checkpoint_wrapped_module")


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


def bare_names(model: nn.Module) -> Callable[[str], str]:
    """Return how to find a name in the bare model."""
    wrappers = (DataParallel, DistributedDataParallel, AveragedModel)
    inner = {f"{path}.module".lstrip(".") for path, module in model.named_modules() if isinstance(module, wrappers)}

    def bare(name: str) -> str:
        parts = name.split(".")
        kept = [i for i, part in enumerate(parts) if part not in _RESERVED and ".".join(parts[: i + 1]) not in inner]
        return ".".join(parts[i] for i in kept)

    return bare
