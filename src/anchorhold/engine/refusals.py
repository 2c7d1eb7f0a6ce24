"""Refuse models of which no right importance can be measured."""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import BackwardCFunction
from torch.autograd.graph import GradientEdge

from anchorhold.adapters import TWIN
from anchorhold.engine.tracing.uses import read_graph
from anchorhold.errors import ModelError


def refuse_nested_backward(outputs: Tensor, parameters: Mapping[str, nn.Parameter]) -> None:
    """Raise ModelError if a backward pass within the backward pass sets a parameter's ``.grad``.

    A ``torch.autograd.Function`` may run layers without a graph, and once more in its own backward pass, where it calls
    ``backward()`` itself: checkpointing that offloads does so. The parameters in there find their gradients in
    ``.grad``, as training needs them, and have no place in the graph. To ``torch.autograd.grad`` they look unused, and
    their importance would be 0.

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


def refuse_merged(model: nn.Module, parameters: Mapping[str, nn.Parameter]) -> None:
    """Raise ModelError if adapters to be measured are merged into the weights they adapt.

    PEFT's ``merge_adapter()`` does so. The outputs follow from the merged weights alone then; the adapter has no
    gradient, and its importance would be 0. Such layers are known by the attributes they have, not by their library.
    """
    names = {id(parameter): name for name, parameter in parameters.items()}
    for path, module in model.named_modules():
        if not _is_merged(module):
            continue
        acting = [getattr(module, name, None) for name in ("base_layer", TWIN)]
        kept = {id(p) for layer in acting if isinstance(layer, nn.Module) for p in layer.parameters()}
        measured = [names[id(p)] for p in module.parameters() if id(p) in names and id(p) not in kept]
        if measured:
            raise ModelError(
                f"{path or 'The model'} ({type(module).__name__}) has its adapter merged into the weights that it "
                f"adapts, so the outputs do not depend on {measured[0]!r} and its importance would be 0. Take the "
                "adapter out again before measuring: model.unmerge_adapter(), or unmerge() of that layer."
            )


def _is_merged(module: nn.Module) -> bool:
    """Whether a module says that it is merged, and has what merges and unmerges it."""
    if not all(callable(getattr(module, name, None)) for name in ("merge", "unmerge")):
        return False
    return getattr(module, "merged", None) is True
