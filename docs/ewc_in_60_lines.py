"""Learn two tasks, one after the other, with elastic weight consolidation in plain torch.

Kirkpatrick et al. 2017, arXiv 1612.00796. A test compares the weights, bit for bit, with those that
``anchorhold.Guard(network, "EWC", strength=20.0)`` gives.
"""
# ruff: noqa: INP001 (a program to be read and run)

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy


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


def label_rows(z: Tensor) -> Tensor:
    """Return rows r with sum r r^T = E_y[(e_y - q)(e_y - q)^T] = diag(q) - q q^T, where q = softmax(z).

    The labels y are drawn from q, and e_y - q is the gradient of log q_y by z. The rows are the columns of the matrix's
    Cholesky factor, one fewer than there are labels.
    """
    q = z.softmax(-1)
    t = q.flip(-1).cumsum(-1).flip(-1)  # the tails t_k = q_k + q_{k+1} + ...
    scale = (q / t)[:, :-1].sqrt() / t[:, 1:].sqrt()
    rows = -q.unsqueeze(1) * scale.unsqueeze(2) * torch.ones(z.shape[1], z.shape[1]).triu(1)[:-1]
    rows.diagonal(dim1=1, dim2=2).copy_(scale * t[:, 1:])
    return rows.transpose(0, 1)


def fisher(network: nn.Sequential, x: Tensor) -> list[Tensor]:
    """Return the diagonal of the Fisher information, F_i = E_x E_{y ~ q(x)} (d log q_y(x) / d theta_i)^2."""
    first, activation, last = network
    h = first(x)
    a = activation(h)
    z = last(a)
    rows = [torch.autograd.grad(z, (h, z), row, retain_graph=True) for row in label_rows(z.detach())]
    found = []
    # Of each layer, its inputs and delta = d log q / d outputs, row by row.
    for inputs, deltas in zip((x, a.detach()), zip(*rows, strict=True), strict=True):
        squares = torch.zeros_like(deltas[0])
        for delta in deltas:
            squares.addcmul_(delta, delta)
        weight = squares.T @ inputs.square()  # the gradient of W is delta a^T, and its square delta^2 (a^2)^T
        found += [weight / len(x), torch.stack(deltas).square().sum((0, 1)) / len(x)]
    return found


def train(network: nn.Sequential, x: Tensor, y: Tensor, omega: list[Tensor], anchor: list[Tensor], c: float) -> None:
    """Minimise the task's loss + c <D, Omega D> with D = theta - theta*, the penalty by its gradient 2c Omega D."""
    optimizer = torch.optim.Adam(network.parameters(), lr=0.01)
    for _ in range(50):
        optimizer.zero_grad()
        cross_entropy(network(x), y).backward()
        for theta, omega_i, theta_star in zip(network.parameters(), omega, anchor, strict=False):
            theta.grad.addcmul_(omega_i, theta.detach() - theta_star, value=2 * c)
        optimizer.step()


def main(c: float = 20.0) -> nn.Sequential:
    """Return a network that has learned both tasks, with strength c."""
    network, omega, anchor = make_network(), [], []
    for x, y in make_tasks():
        train(network, x, y, omega, anchor, c)
        found = fisher(network, x)
        omega = [old + new for old, new in zip(omega, found, strict=False)] or found  # importances add up over tasks
        anchor = [theta.detach().clone() for theta in network.parameters()]
    return network


if __name__ == "__main__":
    for c in (0.0, 20.0):
        learned = main(c)
        right = [float((learned(x).argmax(1) == y).double().mean()) for x, y in make_tasks()]
        print(f"c = {c:g}: {right[0]:.0%} of the first task's labels are right, {right[1]:.0%} of the second's")
