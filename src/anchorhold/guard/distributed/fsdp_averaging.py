"""Whether FSDP2 brings gradients together as their mean, as it does unless it was told otherwise."""

from collections.abc import Iterator
from typing import Any

from torch import nn

from anchorhold.errors import OrderError


def refuse_unless_averaging(model: nn.Module) -> None:
    """Refuse a sharded model whose processes' gradients would come together later, or as another multiple."""
    for group in _groups(model):
        if not (getattr(group, "reduce_grads", True) and getattr(group, "all_reduce_grads", True)):
            raise OrderError(
                "FSDP was told not to bring gradients together, as for all but the last micro-batch of a step: what "
                "each process has is its own alone. Call model.set_requires_gradient_sync(True) first."
            )
        factor = getattr(group, "gradient_divide_factor", None)
        if factor is not None:
            raise OrderError(
                f"FSDP was told to divide sums of gradients by {factor:g} (set_gradient_divide_factor); expected their "
                "mean over the processes. Measure before that is set, or with a model of its own."
            )


def _groups(model: nn.Module) -> Iterator[Any]:
    """Yield what FSDP keeps of the parameters that it gathers together."""
    for module in model.modules():
        state = getattr(module, "_get_fsdp_state", None)
        if state is not None:
            yield from getattr(state(), "_fsdp_param_groups", ())
