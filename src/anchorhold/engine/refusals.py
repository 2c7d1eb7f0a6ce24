"""Refuse models of which no right importance can be measured."""

import warnings
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import BackwardCFunction
from torch.autograd.graph import GradientEdge

from anchorhold.adapters import TWIN
from anchorhold.engine.scores.outputs import are_probabilities
from anchorhold.engine.tracing.uses import read_graph
from anchorhold.errors import AnchorholdWarning, ModelError
from anchorhold.tensors.names import named_parameters


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
    own = []
    for node in nodes:
        function = getattr(type(node), "_forward_cls", type(node))
        if isinstance(node, BackwardCFunction) and str(function.__module__).partition(".")[0] != "torch":
            own.append(node)
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


def refuse_merged(model: nn.Module, parameters: Mapping[str, nn.Parameter]) -> None:
    """Raise ModelError if adapters to be measured are merged into the weights they adapt.

    PEFT's ``merge_adapter()`` does so. The outputs follow from the merged weights alone then; the adapter has no
    gradient, and its importance would be 0. Such layers are known by the attributes they have, not by their library.
    """
    names = {id(parameter): name for name, parameter in parameters.items()}
    for path, module in model.named_modules():
        can_merge = callable(getattr(module, "merge", None)) and callable(getattr(module, "unmerge", None))
        if not can_merge or getattr(module, "merged", None) is not True:
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


def checked_real(parameters: Mapping[str, nn.Parameter]) -> dict[str, nn.Parameter]:
    """Return the parameters that were chosen. Raise ModelError if one is not real."""
    for name, parameter in parameters.items():
        if not parameter.is_floating_point():
            raise ModelError(
                f"{name!r} has type {parameter.dtype}; importance is measured of real floating-point parameters. Leave "
                "it out of parameters=; of a complex one, keep the real and imaginary parts as real parameters."
            )
    return dict(parameters)


def real_parameters(model: nn.Module) -> dict[str, nn.Parameter]:
    """Return all real parameters that can have a gradient, and warn of complex ones; quantised ones hold integers."""
    complex_ones = [name for name, p in named_parameters(model) if p.is_complex()]
    if complex_ones:
        warnings.warn(
            f"{complex_ones[0]!r} is complex, as {len(complex_ones)} of the model's parameters are; importance is "
            "measured of real ones, and those are left out. Keep the real and imaginary parts as real parameters "
            "(torch.view_as_complex puts them together), or name the parameters to measure by parameters=.",
            AnchorholdWarning,
            stacklevel=1,  # from one place, so that it is shown once
        )
    return {name: p for name, p in named_parameters(model) if p.is_floating_point()}


def refuse_replaced(model: nn.Module, parameters: Mapping[str, nn.Parameter]) -> None:
    """Raise ModelError if the model no longer has these parameters: what it has instead was not measured."""
    present = {id(parameter) for parameter in model.parameters()}
    for name, parameter in parameters.items():
        if id(parameter) not in present:
            raise ModelError(
                f"The model's forward pass puts another parameter in the place of {name!r}, so what was measured is "
                "none of the model's any more. Compute in the forward pass with a tensor of its own instead."
            )


def check_outputs(outputs: Tensor, samples: int) -> None:
    """Raise ModelError if outputs are not one row a sample, or do not depend on the parameters."""
    if outputs.ndim == 0 or len(outputs) != samples:
        raise ModelError(
            f"The model returned outputs of shape {tuple(outputs.shape)} for {samples} samples; expected "
            f"[{samples}, ...]. Give a `forward` whose outputs have one row a sample."
        )
    if not outputs.requires_grad:
        raise ModelError(
            "The model's outputs do not depend on any of the parameters that are measured, as far as autograd can see. "
            "Check that its forward pass is not under torch.no_grad() and detaches nothing."
        )


def warn_of_probabilities(logits: Tensor) -> None:
    """Warn if the outputs are probabilities already, of which another softmax would be taken."""
    if are_probabilities(logits):
        warnings.warn(
            "The model's outputs are probabilities, which add up to 1 for each sample, and expected are logits, whose "
            "softmax is taken here: another model is measured, whose logits these are. Return logits, or say how "
            "they come out of it: forward=lambda model, inputs: model(inputs).clamp(min=1e-30).log().",
            AnchorholdWarning,
            stacklevel=1,  # from one place, so that it is shown once
        )
