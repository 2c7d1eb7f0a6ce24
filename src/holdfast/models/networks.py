"""The paper's two networks, with its initialisation."""

import itertools
from collections.abc import Sequence

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
    """Draw the weights of linear and convolutional layers Glorot-uniformly, and set their biases.

    The fans of a convolution count its kernel, as they do in TensorFlow and in torch.
    """
    for layer in module.modules():
        if isinstance(layer, nn.Linear | nn.Conv1d | nn.Conv2d):
            nn.init.xavier_uniform_(layer.weight, generator=generator)
            if layer.bias is not None:
                nn.init.constant_(layer.bias, bias)


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
