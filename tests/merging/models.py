"""Small networks, their forms, and the normal equations solved by brute force."""

import copy

import torch
from torch import nn

import anchorhold
from tests import helpers


def network(seed=0, dtype=torch.float64):
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.LayerNorm(5), nn.Linear(5, 3)).to(dtype)


def moved(model, size=0.3, seed=7):
    """A copy that has been trained a little."""
    generator = torch.Generator().manual_seed(seed)
    other = copy.deepcopy(model)
    with torch.no_grad():
        for parameter in other.parameters():
            parameter.add_(size * torch.randn(parameter.shape, generator=generator).to(parameter))
    return other


def batches(seed, dtype=torch.float64, samples=40):
    generator = torch.Generator().manual_seed(seed)
    scale = torch.rand(4, generator=generator) + 0.2
    return [(torch.randn(samples, 4, generator=generator) * scale).to(dtype)]


def guarded(model, form="diagonal", seed=3, protect=None, data=None):
    data = batches(seed, next(model.parameters()).dtype) if data is None else data
    return helpers.guarded(model, data, anchorhold.Fisher(), form=form, protect=protect)


def dense(matrices, parameters):
    """The matrix that some Q are, over all parameters in order: each is applied to every unit vector."""
    sizes = [p.numel() for p in parameters.values()]
    whole = torch.zeros(sum(sizes), sum(sizes), dtype=torch.float64)
    offsets = dict(zip(parameters, [sum(sizes[:k]) for k in range(len(sizes))], strict=True))
    for matrix in matrices.values():
        for name in matrix.block.parameters:
            for element in range(parameters[name].numel()):
                unit = {n: torch.zeros_like(parameters[n]) for n in matrix.block.parameters}
                unit[name].view(-1)[element] = 1.0
                for other, column in matrix.apply(unit).items():
                    rows = slice(offsets[other], offsets[other] + column.numel())
                    whole[rows, offsets[name] + element] = column.reshape(-1)
    return whole


def vector(parameters):
    return torch.cat([p.detach().reshape(-1) for p in parameters.values()])


def brute_force(models, guards, shares, damping):
    """argmin Σ c_k⟨θ−θ_k, (Q_k/mean_k + ε)(θ−θ_k)⟩, as one dense system."""
    parameters = [{n: p.detach() for n, p in model.named_parameters()} for model in models]
    left = right = 0.0
    held = sum(c for c, guard in zip(shares, guards, strict=True) if guard is not None)
    for own, guard, c in zip(parameters, guards, shares, strict=True):
        size = sum(p.numel() for p in own.values())
        if guard is None:
            q = torch.eye(size, dtype=torch.float64)
        else:
            q = dense(guard.held.matrices, own)
            q = q * size / q.trace()
        q = q + damping * held * torch.eye(size, dtype=torch.float64)
        left, right = left + c * q, right + c * q @ vector(own)
    return torch.linalg.solve(left, right)
