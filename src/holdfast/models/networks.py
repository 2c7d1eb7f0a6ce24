"""The paper's two networks, with its initialisation."""

import itertools
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, nn

from holdfast.models.dropout import Dropout


class MultiHead(nn.Module):
    """A body that all tasks share, and a head for each of them, or one for all.

    Parameters are called ``body.*`` and ``heads.*``, so that ``protect="body.*"`` leaves heads out.
    """

    def __init__(self, body: nn.Module, features: int, classes: int, heads: int = 1, bias: float = 0.0) -> None:
        super().__init__()
        self.body = body
        self.heads = nn.ModuleList(nn.Linear(features, classes) for _ in range(heads))
        self.bias = bias

    def forward(self, x: Tensor, head: int = 0) -> Tensor:
        """Return the logits of one head."""
        logits: Tensor = self.heads[head](self.body(x))
        return logits

    def initialise(self, generator: torch.Generator | None = None) -> None:
        """Draw all weights anew."""
        initialise(self, self.bias, generator)


def initialise(module: nn.Module, bias: float = 0.0, generator: torch.Generator | None = None) -> None:
    """Draw the weights of linear and convolutional layers Glorot-uniformly, and set their biases."""
    take_weights(module, draw_weights(module, bias, generator))


def draw_weights(module: nn.Module, bias: float = 0.0, generator: torch.Generator | None = None) -> dict[str, Tensor]:
    """Return new weights and biases of linear and convolutional layers, by name.

    The fans of a convolution count its kernel, as they do in TensorFlow and in torch. Weights are drawn where the
    generator is, so that a seed gives the same ones on every device.
    """
    drawn = {}
    for name, layer in module.named_modules():
        if isinstance(layer, nn.Linear | nn.Conv1d | nn.Conv2d):
            weight = torch.empty_like(layer.weight, device="cpu" if generator is None else generator.device)
            drawn[_join(name, "weight")] = nn.init.xavier_uniform_(weight.detach(), generator=generator)
            if layer.bias is not None:
                drawn[_join(name, "bias")] = torch.full_like(layer.bias.detach(), bias)
    return drawn


@torch.no_grad()
def take_weights(module: nn.Module, drawn: Mapping[str, Tensor]) -> None:
    """Set parameters to given values, in place."""
    for name, value in drawn.items():
        module.get_parameter(name).copy_(value)


def _join(path: str, name: str) -> str:
    return f"{path}.{name}" if path else name


def mlp(
    inputs: int = 784, hidden: Sequence[int] = (2000, 2000), classes: int = 10, heads: int = 1, bias: float = 0.1
) -> MultiHead:
    """Return the network of Permuted MNIST: fully connected, ReLU, biases that start at 0.1."""
    widths = [inputs, *hidden]
    layers = [layer for a, b in itertools.pairwise(widths) for layer in (nn.Linear(a, b), nn.ReLU(inplace=True))]
    network = MultiHead(nn.Sequential(*layers), widths[-1], classes, heads, bias)
    network.initialise()
    return network


def cnn(classes: int = 10, heads: int = 6, channels: int = 3) -> MultiHead:
    """Return the network of Split CIFAR: Keras' default for CIFAR-10, with "same" convolutions and dropout."""

    def pair(a: int, b: int) -> list[nn.Module]:
        layers: list[nn.Module] = []
        for inner in (a, b):
            layers += [nn.Conv2d(inner, b, 3, padding=1), nn.ReLU(inplace=True)]
        return [*layers, nn.MaxPool2d(2), Dropout(0.25)]

    dense = [nn.Flatten(), nn.Linear(64 * 8 * 8, 512), nn.ReLU(inplace=True), Dropout(0.5)]
    network = MultiHead(nn.Sequential(*pair(channels, 32), *pair(32, 64), *dense), 512, classes, heads)
    network.initialise()
    return network
