"""Adapters that are none of PEFT's: layers with a low-rank product beside them, and the kind that describes them."""

import torch
import torch.nn.functional as F
from torch import nn

import anchorhold
from anchorhold.adapters import Product


class Adapted(nn.Module):
    """A layer and s·BA beside it; of a convolution A has the kernel, and of an embedding the rows."""

    def __init__(self, layer, rank, scale=1.5):
        super().__init__()
        self.layer, self.scale = layer.requires_grad_(False), scale
        weight = layer.weight
        if isinstance(layer, nn.Embedding):
            weight = weight.mT
        self.a = nn.Parameter(0.5 * torch.randn(rank, *weight.shape[1:]))
        self.b = nn.Parameter(0.5 * torch.randn(len(weight), rank))

    def forward(self, x):
        if isinstance(self.layer, nn.Embedding):
            added = F.embedding(x, self.a.mT, self.layer.padding_idx) @ self.b.mT
        elif isinstance(self.layer, nn.Conv2d):
            inner = F.conv2d(x, self.a, None, self.layer.stride, self.layer.padding)
            added = F.conv2d(inner, self.b[:, :, None, None])
        else:
            added = x @ self.a.mT @ self.b.mT
        return self.layer(x) + self.scale * added


@anchorhold.adapters.register_adapter("by-hand")
class ByHand(anchorhold.adapters.Adapter):
    """Those layers."""

    @classmethod
    def describes(cls, module):
        return isinstance(module, Adapted)

    @property
    def layer(self):
        return self.module.layer

    def change(self):
        return Product(self.module.scale * self.module.b, self.module.a.flatten(1))


class Read(nn.Module):
    """Rows of a table along a sequence, a layer at each position, and another of their mean."""

    def __init__(self):
        super().__init__()
        self.table, self.inner, self.head = nn.Embedding(6, 4, padding_idx=0), nn.Linear(4, 5), nn.Linear(5, 3)

    def forward(self, x):
        return self.head(torch.tanh(self.inner(torch.tanh(self.table(x)))).mean(1))


def networks():
    """Return networks by name, each with inputs and the layers that are to be adapted."""
    mlp = nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 4), nn.Tanh(), nn.Linear(4, 3, bias=False))
    convolution = nn.Sequential(
        nn.Conv2d(2, 3, 3, padding=1, stride=2), nn.Tanh(), nn.Conv2d(3, 4, 2), nn.Tanh(), nn.Flatten(), nn.Linear(4, 3)
    )
    return {
        "mlp": (mlp, torch.randn(7, 4), ("0", "2", "4")),
        "convolution": (convolution, torch.randn(6, 2, 4, 4), ("0", "2", "5")),
        "sequence": (Read(), torch.randint(0, 6, (6, 3)), ("table", "inner", "head")),
    }


def adapt(model, layers, rank=2):
    """Freeze a network and give some of its layers an adapter."""
    model.requires_grad_(False)
    for name in layers:
        setattr(model, name, Adapted(getattr(model, name), rank).to(next(model.parameters()).dtype))
    return model


def merged(module):
    """Return the weight that an adapted layer computes with, differentiable in its factors."""
    delta = module.scale * module.b @ module.a.flatten(1)
    weight = module.layer.weight
    return weight + (delta.mT if isinstance(module.layer, nn.Embedding) else delta.view_as(weight))
