"""Which units dropout keeps, drawn before the forward pass, each run from its own stream."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from anchorhold_lab.networks import Dropout, MultiHead, draw_kept_


@dataclass(frozen=True)
class _DropoutLayer:
    """One dropout layer, and what it is given."""

    name: str
    p: float
    seen: Tensor


class Masks:
    """The masks of every dropout layer of a network, for L runs, in the order in which the layers are called."""

    def __init__(self, model: MultiHead, x: Tensor, generators: Sequence[torch.Generator]) -> None:
        """Find the layers by running the network on one batch ``x``."""
        self._layers = _layers(model, x)
        self._generators = generators
        runs = len(generators)
        self._kept = {
            # As the activation lies in memory, so must the mask, or each reads the other's order badly.
            layer.name: torch.stack([torch.empty_like(layer.seen) for _ in range(runs)])
            if runs > 1
            else torch.empty_like(layer.seen).unsqueeze(0)
            for layer in self._layers
        }

    def draw(self) -> dict[str, Tensor]:
        """Draw all masks, ``[L, *activation]`` by the name of the layer's buffer."""
        for layer in self._layers:
            for kept, generator in zip(self._kept[layer.name], self._generators, strict=True):
                draw_kept_(kept, layer.p, generator)
        return self._kept


def _layers(model: MultiHead, x: Tensor) -> list[_DropoutLayer]:
    layers: list[_DropoutLayer] = []
    names = {module: name for name, module in model.named_modules() if isinstance(module, Dropout) and module.p > 0}

    def note(module: nn.Module, args: tuple[Tensor, ...]) -> None:
        assert isinstance(module, Dropout)
        layers.append(_DropoutLayer(f"{names[module]}.kept", module.p, torch.empty_like(args[0])))

    hooks = [module.register_forward_pre_hook(note) for module in names]
    try:
        with torch.no_grad():
            model.eval()(x)
    finally:
        for hook in hooks:
            hook.remove()
    return layers
