"""Learn two tasks, one after the other, with rotated EWC in plain torch.

Liu et al. 2018, arXiv 1802.02950. Read ``ewc_in_60_lines.py`` first, where each weight has an importance of its own.
Here each direction of a layer has one: the directions are the eigenvectors of G = E[delta delta^T] and A = E[a a^T], of
the gradients at the layer's outputs and of its inputs, along which the Fisher information is nearly diagonal. A test
compares the weights, bit for bit, with those that ``anchorhold.Guard(network, "EWC", form="rotated", strength=20.0)``
gives.
"""
# ruff: noqa: INP001 (a program to be read and run)

from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

DAMPING = 0.001  # the share of its mean importance that each direction of a layer is given beside its own


def make_network() -> nn.Sequential:
    """Return a classifier with 4 inputs and 3 classes."""
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 3)).double()


def make_tasks() -> list[tuple[Tensor, Tensor]]:
    """Return the samples and labels of two tasks: in each, two of the four inputs say which of three classes it is."""
    torch.manual_seed(1)
    rule, x = torch.randn(4, 3, dtype=torch.float64), torch.randn(2, 64, 4, dtype=torch.float64)
    x[0, :, 2:], x[1, :, :2] = 0, 0
    return [(own, (own @ rule).argmax(1)) for own in x]


class Rotated(NamedTuple):
    """Q of one layer's [W b], as Q(D) = U_G (S o (U_G^T D U_A)) U_A^T."""

    s: Tensor  # the importance of each direction, outputs x inputs
    u_g: Tensor  # eigenvectors of G, in columns, and of A
    u_a: Tensor
    l_g: Tensor  # their eigenvalues
    l_a: Tensor

    def apply(self, d: Tensor) -> Tensor:
        """Return Q(D)."""
        return self.u_g @ (self.u_g.T @ d @ self.u_a * self.s) @ self.u_a.T

    def diagonal_in(self, u_g: Tensor, u_a: Tensor) -> Tensor:
        """Return the diagonal of the same Q in other coordinates: (R_G o R_G) S (R_A o R_A)^T with R = U^T U_here."""
        return (u_g.T @ self.u_g).square() @ self.s @ (u_a.T @ self.u_a).square().T


def label_rows(z: Tensor) -> Tensor:
    """Return rows r with sum r r^T = diag(q) - q q^T, q = softmax(z): labels drawn from the model, as in EWC's file."""
    q = z.softmax(-1)
    t = q.flip(-1).cumsum(-1).flip(-1)  # the tails t_k = q_k + q_{k+1} + ...
    scale = (q / t)[:, :-1].sqrt() / t[:, 1:].sqrt()
    rows = -q.unsqueeze(1) * scale.unsqueeze(2) * torch.ones(z.shape[1], z.shape[1]).triu(1)[:-1]
    rows.diagonal(dim1=1, dim2=2).copy_(scale * t[:, 1:])
    return rows.transpose(0, 1)


def inputs_and_deltas(network: nn.Sequential, x: Tensor) -> list[tuple[Tensor, Tensor]]:
    """Return of each layer its inputs a [N, inputs], and delta = d log q / d outputs [rows, N, outputs]."""
    first, activation, last = network
    h = first(x)
    a = activation(h)
    z = last(a)
    rows = [torch.autograd.grad(z, (h, z), row, retain_graph=True) for row in label_rows(z.detach())]
    of_layers = zip((x, a.detach()), zip(*rows, strict=True), strict=True)
    return [(inputs, torch.stack(deltas)) for inputs, deltas in of_layers]


def factors(a: Tensor, delta: Tensor) -> tuple[Tensor, Tensor]:
    """Return G = E[delta delta^T] and A = E[a a^T], where a has a 1 at its end for the bias."""
    n, outputs, inputs = len(a), delta.shape[2], a.shape[1]
    g, of_inputs = (torch.zeros(size, size, dtype=a.dtype) for size in (outputs, inputs + 1))
    g.addmm_(delta.flatten(0, 1).T, delta.flatten(0, 1))
    of_inputs[:-1, :-1].addmm_(a.T, a)
    of_inputs[-1, :-1] = a.sum(0)
    of_inputs[-1, -1] = n
    return symmetric(g) / n, symmetric(of_inputs) / n


def symmetric(below: Tensor) -> Tensor:
    """Return a symmetric matrix, given what lies on and below its diagonal."""
    return below.tril() + below.tril(-1).T


def balanced(g: Tensor, a: Tensor) -> tuple[Tensor, Tensor]:
    """Return factors of the same product that have the same trace, so that those of several tasks can be added."""
    ratio = (a.trace() / g.trace()).sqrt()
    return g * ratio, a / ratio


def eigenbasis(factor: Tensor) -> tuple[Tensor, Tensor]:
    """Return the eigenvalues of a factor, none below 0, and its eigenvectors in columns."""
    values, vectors = torch.linalg.eigh(factor)
    return values.clamp(min=0), vectors.contiguous()


def measured(a: Tensor, delta: Tensor, before: Rotated | None) -> Rotated:
    """Return Q of a layer for all tasks so far, in the eigenvectors of all tasks' factors."""
    g_a = balanced(*factors(a, delta))
    if before is not None:
        earlier = ((before.u_g * before.l_g) @ before.u_g.T, (before.u_a * before.l_a) @ before.u_a.T)
        g_a = [new + old for new, old in zip(g_a, balanced(*earlier), strict=True)]
    (l_g, u_g), (l_a, u_a) = (eigenbasis(factor) for factor in g_a)
    turned = (delta.flatten(0, 1) @ u_g).view_as(delta)
    squares = torch.zeros_like(turned[0])
    for row in turned:
        squares.addcmul_(row, row)
    s = squares.T @ (a @ u_a[:-1] + u_a[-1]).square() / len(a)  # E (u_G^T delta a^T u_A)^2
    s = s + DAMPING * s.mean()
    if before is not None:
        s = s + before.diagonal_in(u_g, u_a)
    return Rotated(s, u_g, u_a, l_g, l_a)


def train(network: nn.Sequential, x: Tensor, y: Tensor, q: list[Rotated], anchor: list[Tensor], c: float) -> None:
    """Minimise the task's loss + c <D, Q(D)> with D = [W b] - [W b]*, the penalty by its gradient 2c Q(D)."""
    optimizer = torch.optim.Adam(network.parameters(), lr=0.01)
    for _ in range(50):
        optimizer.zero_grad()
        cross_entropy(network(x), y).backward()
        for layer, q_l, star in zip((network[0], network[2]), q, anchor, strict=False):
            pull = 2 * c * q_l.apply(joined(layer) - star)
            layer.weight.grad += pull[:, :-1]
            layer.bias.grad += pull[:, -1]
        optimizer.step()


def joined(layer: nn.Linear) -> Tensor:
    """Return [W b] of a layer."""
    return torch.cat([layer.weight, layer.bias.unsqueeze(1)], 1).detach()


def main(c: float = 20.0) -> nn.Sequential:
    """Return a network that has learned both tasks, with strength c."""
    network, q, anchor = make_network(), [], []
    for x, y in make_tasks():
        train(network, x, y, q, anchor, c)
        seen = inputs_and_deltas(network, x)
        q = [measured(a, delta, before) for (a, delta), before in zip(seen, q or [None] * len(seen), strict=True)]
        anchor = [joined(layer) for layer in (network[0], network[2])]
    return network


if __name__ == "__main__":
    for c in (0.0, 20.0):
        learned = main(c)
        right = [float((learned(x).argmax(1) == y).double().mean()) for x, y in make_tasks()]
        print(f"c = {c:g}: {right[0]:.0%} of the first task's labels are right, {right[1]:.0%} of the second's")
