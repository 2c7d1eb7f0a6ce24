"""What tests of many folders begin with: a small network, a guard that has consolidated, weights that have moved."""

import dataclasses
from itertools import pairwise

import torch
from torch import nn

import anchorhold


def network(*sizes, activation=nn.Tanh, seed=0, dtype=torch.float64):
    """Return linear layers of these sizes with an activation between them, drawn from a seed."""
    torch.manual_seed(seed)
    layers = []
    for inputs, outputs in pairwise(sizes):
        layers += [nn.Linear(inputs, outputs), activation()]
    return nn.Sequential(*layers[:-1]).to(dtype)


def guarded(model, batches, measure, strength=None, **options):
    """Return a guard that has consolidated these batches."""
    guard = anchorhold.Guard(model, measure, strength=strength, **grouped(**options))
    guard.consolidate(batches)
    return guard


def grouped(**arguments):
    """Return a Guard's arguments with the rarer ones in their group, where a test has them all in one mapping."""
    rarer = {field.name for field in dataclasses.fields(anchorhold.GuardOptions)} & arguments.keys()
    options = {"options": anchorhold.GuardOptions(**{name: arguments.pop(name) for name in rarer})} if rarer else {}
    return arguments | options


def move(model, by, seed=5):
    """Add normal noise of this standard deviation to all weights, drawn from a seed of its own."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(by * torch.randn(parameter.shape, generator=generator, dtype=parameter.dtype))
