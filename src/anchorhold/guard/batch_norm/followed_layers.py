"""Which layer each batch norm follows, as a forward pass over a few samples shows it, never by guess."""

import contextlib
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm as BatchNorm

from anchorhold.engine.batches import Forward, KeptInputs, call_model
from anchorhold.engine.conventions import BatchReader
from anchorhold.engine.isolation import isolated
from anchorhold.errors import ModelError
from anchorhold.spaces.folded import Foldable, Folded, Pair
from anchorhold.tensors.names import named_modules

FEW = 2
"""Samples that the model is called with."""


class Following(NamedTuple):
    """What a forward pass has shown of batch norms."""

    layers: dict[str, str]
    """Those that can be folded, by name, each with the layer that it follows."""
    others: dict[str, str]
    """The others, each with the reason."""
    unseen: set[str]
    """Those that the pass did not reach."""


class _Call(NamedTuple):
    """A call of a layer: what it was given, and what it made of that."""

    layer: str
    given: Tensor
    made: Tensor
    version: int


def find_following(
    model: nn.Module,
    norms: Mapping[str, BatchNorm],
    parameters: Mapping[str, nn.Parameter],
    batch: Any,
    forward: Forward | None,
) -> Following:
    """Call a model once, and return which layer each of its batch norms follows directly.

    A batch norm can be folded if it is called once, with what a linear or convolutional layer has made that is called
    once too, and if both together are one linear map of what that layer was given.

    Args:
        model: the network, which is left as it was.
        norms: the batch norms that matter, by name.
        parameters: the protected parameters.
        batch: a batch as users give it.
        forward: how the model is called.
    """
    modules = dict(named_modules(model))
    layers = {name: module for name, module in modules.items() if isinstance(module, Foldable)}
    names = {id(parameter): name for name, parameter in parameters.items()}
    owners = Counter(id(p) for module in modules.values() for p in module.parameters(recurse=False))
    calls: list[_Call] = []
    reached: list[tuple[str, str | None, bool]] = []

    def note_layer(name: str, _module: nn.Module, given: tuple[Any, ...], made: Any) -> None:
        if given and isinstance(made, Tensor):
            calls.append(_Call(name, given[0], made, made._version))

    def note_norm(name: str, norm: nn.Module, given: tuple[Any, ...], made: Any) -> None:
        before = next((call for call in calls if given and call.made is given[0]), None)
        one_map = False
        if before is not None and before.version == before.made._version:
            assert isinstance(norm, BatchNorm)
            one_map = _is_one_map(Pair(layers[before.layer], norm, names), before.given, made)
        reached.append((name, None if before is None else before.layer, one_map))

    run = _runner(model, parameters, batch, forward)
    with _hooked(layers, note_layer), _hooked(norms, note_norm):
        outputs = run()
    times_called, times_reached = Counter(call.layer for call in calls), Counter(name for name, _, _ in reached)
    found = Following({}, {}, norms.keys() - times_reached.keys())
    for name, layer, one_map in reached:
        weight = None if layer is None else layers[layer].weight
        if times_reached[name] > 1:
            found.others[name] = "it is called several times"
        elif layer is None:
            found.others[name] = "it does not follow a linear or convolutional layer directly"
        elif times_called[layer] > 1:
            found.others[name] = f"it follows {layer!r}, which is called several times"
        elif id(weight) not in names or owners[id(weight)] > 1:
            found.others[name] = f"it follows {layer!r}, whose weight is not protected, or is another layer's too"
        elif not one_map:
            found.others[name] = f"it and {layer!r} before it are no linear map"
        else:
            found.layers[name] = layer
    _check_folded(Folded(model, parameters, found.layers), run, outputs)
    return found


def _runner(
    model: nn.Module, parameters: Mapping[str, nn.Parameter], batch: Any, forward: Forward | None
) -> Callable[[], Tensor]:
    """Return how to call the model with a few samples, each time the same way."""
    device = next(iter(parameters.values())).device
    call = KeptInputs(forward or call_model)

    def run() -> Tensor:
        with isolated(model, parameters.values()):
            return call(model, BatchReader(device, model).read(batch)[:FEW].inputs).detach()

    return run


@contextlib.contextmanager
def _hooked(modules: Mapping[str, nn.Module], note: Callable[..., None]) -> Iterator[None]:
    def hook(name: str) -> Callable[..., None]:
        return lambda module, given, made: note(name, module, given, made)

    handles = [module.register_forward_hook(hook(name)) for name, module in modules.items()]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


@torch.no_grad()
def _is_one_map(pair: Pair, given: Tensor, made: Any) -> bool:
    """Whether a layer and a batch norm have made W̃a + b̃ of what the layer was given."""
    weight, bias = (tensor.to(given.dtype) for tensor in pair.folded())
    layer = pair.layer
    if isinstance(layer, nn.Linear):
        expected = F.linear(given, weight, bias)
    else:
        expected = layer._conv_forward(given, weight, bias)  # noqa: SLF001 (which knows its padding)
    return isinstance(made, Tensor) and _are_close(made, expected, float(bias.abs().max()))


def _are_close(found: Tensor, expected: Tensor, size: float) -> bool:
    """Whether two tensors are the same up to rounding, in a sum of numbers up to this size."""
    if found.shape != expected.shape:
        return False
    largest = max(size, float(expected.abs().max()))
    tolerance: float = torch.finfo(found.dtype).eps ** 0.5
    return float((found - expected).abs().max()) <= tolerance * largest


def _check_folded(space: Folded, run: Callable[[], Tensor], outputs: Tensor) -> None:
    """Refuse a network that computes something else once its layers are folded."""
    if not space.pairs:
        return
    with space.put_in_place():
        folded = run()
    if not _are_close(folded, outputs, 10 * float(outputs.abs().max())):
        raise ModelError(
            f"With {', '.join(map(repr, space.pairs))} folded into the layers before them the model computes "
            "something else, so the output of such a layer, or its weight, is used elsewhere too. Take "
            "batch_norm='freeze'."
        )
