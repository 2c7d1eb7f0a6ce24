"""A small problem that the guard's tests share."""

from functools import partial

import torch
from torch import nn

import anchorhold
from tests.helpers import grouped, network

net = partial(network, 4, 5, 3)


def batch(seed=0, n=8, dtype=torch.float64):
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(n, 4, generator=generator, dtype=torch.float64).to(dtype)
    return x, torch.randint(0, 3, (n,), generator=generator)


def loss(model, data):
    return nn.functional.cross_entropy(model(data[0]), data[1])


def train(model, optimizer, steps=3, seed=0, dtype=torch.float64):
    for i in range(steps):
        optimizer.zero_grad()
        loss(model, batch(seed + i, dtype=dtype)).backward()
        optimizer.step()


def consolidated(model, measure=None, strength=0.5, **options):
    """A guard that has consolidated once, from data, and a model that has since moved away from its anchor."""
    guard = anchorhold.Guard(model, measure or anchorhold.Fisher(), strength=strength, **grouped(**options))
    guard.consolidate([batch(9)])
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
    return guard


def weights(model):
    return {name: p.detach().clone() for name, p in model.named_parameters()}
