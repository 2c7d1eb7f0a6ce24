"""What the tests of forms over whole networks share: small networks, their data, and H by brute force."""

from functools import partial

import torch
from torch import nn

import anchorhold
from anchorhold.engine.reductions import as_vector
from tests import helpers, oracles

STRENGTH = 0.7
move = partial(helpers.move, by=0.1)


class Branches(nn.Module):
    """A weight that is used twice, a norm, and a scale of one number."""

    def __init__(self):
        super().__init__()
        self.first, self.norm, self.shared = nn.Linear(4, 5), nn.LayerNorm(5), nn.Linear(5, 5, bias=False)
        self.scale = nn.Parameter(torch.tensor(1.3))
        self.head = nn.Linear(5, 3)

    def forward(self, x):
        x = self.norm(self.first(x)).tanh()
        return self.head(self.scale * self.shared(self.shared(x).tanh()))


class Recurrent(nn.Module):
    """Has no rule for its cell, so that all gradients come from the fallback."""

    def __init__(self):
        super().__init__()
        self.cell, self.head = nn.GRU(2, 3, batch_first=True), nn.Linear(3, 3)

    def forward(self, x):
        return self.head(self.cell(x.unflatten(1, (2, 2)))[0][:, -1])


def mlp():
    return nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 3))


def convolutions():
    layers = nn.Conv2d(1, 3, 2), nn.ReLU(), nn.Flatten(), nn.Linear(3, 3, bias=False)
    return nn.Sequential(nn.Unflatten(1, (1, 2, 2)), *layers)


NETWORKS = {"mlp": mlp, "branches": Branches, "convolutions": convolutions, "recurrent": Recurrent}


def network(kind="mlp", seed=0):
    torch.manual_seed(seed)
    return NETWORKS[kind]().double()


def data(seed=0, n=20):
    generator = torch.Generator().manual_seed(seed)
    return [(torch.randn(n, 4, generator=generator, dtype=torch.float64), torch.randint(3, (n,), generator=generator))]


def brute_force(model, names=None, scores=oracles.every_label, seed=0):
    """Return the mean of ggᵀ by its definition."""
    return oracles.outer_products(model, oracles.one_by_one(*data(seed)[0]), scores, names)


def guarded(model, form, measure=None, **settings):
    return helpers.guarded(model, data(), measure or anchorhold.Fisher(), STRENGTH, form=form, **settings)


def displacement(guard, model, block="network"):
    """Return D of a block by parameter, and as a vector."""
    parameters, matrix = dict(model.named_parameters()), guard.held.matrices[block]
    d = {name: (parameters[name] - guard.anchor[name]).detach() for name in matrix.block.parameters}
    return d, as_vector(matrix.block, d)


def dense(matrix):
    """Return Q as a matrix, by applying it to every unit vector."""
    block = matrix.block
    columns = []
    for unit in torch.eye(block.length, dtype=torch.float64):
        start, d = 0, {}
        for name, shape in zip(block.parameters, block.shapes, strict=True):
            end = start + torch.Size(shape).numel()
            d[name], start = unit[start:end].view(shape), end
        columns.append(as_vector(block, matrix.apply(d)))
    return torch.stack(columns, 1)


def assert_verbs_are_those_of(matrix, q, d, vector):
    """Compare all that a matrix can do with the same done to Q by numpy's means."""
    one = torch.eye(len(q), dtype=q.dtype)

    def joined(found):
        assert {name: each.shape for name, each in found.items()} == {name: each.shape for name, each in d.items()}
        return as_vector(matrix.block, found)

    close = {"rtol": 1e-10, "atol": 1e-12}
    torch.testing.assert_close(joined(matrix.apply(d)), q @ vector, **close)
    torch.testing.assert_close(matrix.value(d), vector @ q @ vector, **close)
    torch.testing.assert_close(joined(matrix.shrink(d, 3.0)), torch.linalg.solve(one + 3.0 * q, vector), **close)
    torch.testing.assert_close(joined(matrix.solve(d, 0.1)), torch.linalg.solve(q + 0.1 * one, vector), **close)
    inverse = torch.linalg.pinv(q, hermitian=True, rtol=1e-11)
    torch.testing.assert_close(joined(matrix.solve(d)), inverse @ vector, rtol=1e-6, atol=1e-6 * float(inverse.norm()))
    torch.testing.assert_close(joined(matrix.diagonal()), q.diagonal(), **close)
    torch.testing.assert_close(matrix.trace(), q.trace(), **close)
    torch.testing.assert_close(matrix.largest_eigenvalue(), torch.linalg.eigvalsh(q)[-1], **close)
    torch.testing.assert_close(dense(matrix.scale(2.5)), 2.5 * q, **close)
