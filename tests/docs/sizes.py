"""How many bytes a guard holds for each parameter."""

from unittest import mock

import torch
from torch import nn

import anchorhold
from anchorhold.guard.stepping import bundles


def held(measure, weights=torch.float32, state_dtype=None):
    """Return the bytes a parameter of a guard's state in the middle of a task, and of its working buffers."""
    with mock.patch.object(bundles, "SMALL", 0):  # as if the parameters were large
        return _held(measure, weights, state_dtype)


def _held(measure, weights, state_dtype):
    model = nn.Linear(30, 5).to(weights)
    optimizer = torch.optim.Adam(model.parameters())
    guard = anchorhold.Guard(model, measure, options=anchorhold.GuardOptions(state_dtype=state_dtype))
    guard.attach(optimizer)
    x, y = torch.randn(8, 30, dtype=weights), torch.randint(0, 5, (8,))
    for _ in range(2):
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x), y).backward()
        guard.gradients.samples([(x, y)])
        guard.gradients.independent(nn.functional.cross_entropy(model(x + 1), y))
        optimizer.step()
        if not guard.tasks:
            guard.consolidate([(x, y)])
    # A total that is clamped only where it is used is held twice.
    known = [*guard.state_dict()["tensors"].values(), *guard.importance.values()]
    state = {tensor.data_ptr(): tensor for tensor in known}.values()
    walks = guard._attachment.watcher.layouts._made.values()
    buffers = [tensor for walk in walks for bundle in walk.bundles for tensor in bundle._reused.values()]
    count = sum(parameter.numel() for parameter in model.parameters())
    return tuple(sum(tensor.nbytes for tensor in tensors) / count for tensors in (state, buffers))
