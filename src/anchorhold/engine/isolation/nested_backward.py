"""Noticing a backward pass within the backward pass, whose gradients go past whoever differentiates.

A ``torch.autograd.Function`` may run layers without a graph, and once more in its own backward pass, where it calls
``backward()`` itself: checkpointing that offloads does so. The parameters in there find their gradients in ``.grad``,
as training needs them, and have no place in the graph. To ``torch.autograd.grad`` they look as if nobody used them,
and their importance would be 0 without a sign of it.
"""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import BackwardCFunction
from torch.autograd.graph import GradientEdge

from anchorhold.engine.tracing.parameter_uses import read_graph
from anchorhold.errors import ModelError


def refuse_nested_backward(outputs: Tensor, parameters: Mapping[str, nn.Parameter]) -> None:
    """Raise if any of these parameters is given a gradient on the way through the graph, which only leads to places.

    What functions of one's own do in their backward pass can only be seen by running it, once more where there are any.
    Torch's do no such thing, or say so: reentrant checkpoints refuse all of this, and compiled ones run only once.
    """
    nodes: list[Any] = [] if outputs.grad_fn is None else [outputs.grad_fn, *read_graph(outputs, {})[1]]
    own = [node for node in nodes if isinstance(node, BackwardCFunction) and not _is_of_torch(node)]
    behind = [GradientEdge(node, place) for each in own for node, place in each.next_functions if node is not None]
    if not behind:
        return
    kept = [(parameter, parameter.grad) for parameter in parameters.values()]
    try:
        for parameter, _ in kept:
            parameter.grad = None
        torch.autograd.grad(outputs, behind, torch.ones_like(outputs), retain_graph=True, allow_unused=True)
        hidden = [name for name, parameter in parameters.items() if parameter.grad is not None]
    finally:
        for parameter, gradient in kept:
            parameter.grad = gradient
    if hidden:
        functions = ", ".join(sorted({type(node).__name__.removesuffix("Backward") for node in own}))
        raise ModelError(
            f"{hidden[0]!r} gets its gradient from a backward pass within the backward pass of {functions}, which runs "
            "layers again without a place in autograd's graph: nobody else can differentiate by it, and it would seem "
            "to be unused. Checkpoint with torch.utils.checkpoint.checkpoint, or leave checkpointing out where the "
            "model is not in training mode: importance is measured in eval mode. Measures along the path (SOS, SI) do "
            "without it."
        )


def _is_of_torch(node: BackwardCFunction) -> bool:
    function = getattr(type(node), "_forward_cls", type(node))
    return str(function.__module__).partition(".")[0] == "torch"
