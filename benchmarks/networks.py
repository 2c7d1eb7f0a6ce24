"""The paper's two networks, and inputs of their shapes."""

import torch
from torch import Tensor, nn


def mlp(width: int = 2000) -> nn.Sequential:
    """784-2000-2000-10, ReLU."""
    hidden = [nn.Linear(784, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU()]
    return nn.Sequential(*hidden, nn.Linear(width, 10)).eval()


def cnn(side: int = 32) -> nn.Sequential:
    """Keras's CIFAR network: 3×3 "same" convolutions 32, 32, pool, 64, 64, pool, then 512 units and a head of 10."""

    def convolution(inputs: int, outputs: int) -> list[nn.Module]:
        return [nn.Conv2d(inputs, outputs, 3, padding=1), nn.ReLU()]

    return nn.Sequential(
        *convolution(3, 32), *convolution(32, 32), nn.MaxPool2d(2), nn.Dropout(0.25),
        *convolution(32, 64), *convolution(64, 64), nn.MaxPool2d(2), nn.Dropout(0.25),
        nn.Flatten(), nn.Linear(4 * side**2, 512), nn.ReLU(), nn.Dropout(0.5), nn.Linear(512, 10),
    ).eval()  # fmt: skip


def digits(count: int) -> Tensor:
    """Random pixels of MNIST's shape."""
    return torch.rand(count, 784)


def photographs(count: int, side: int = 32) -> Tensor:
    """Random pixels of CIFAR's shape."""
    return torch.rand(count, 3, side, side)
