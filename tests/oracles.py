r"""Importance by brute force, from its definition and nothing else.

.. math:: \omega = E_x \sum_y w_y(x)\, \varphi\!\left(\frac{\partial s_y(x)}{\partial \theta}\right)

In float64, one sample and one label at a time, each gradient by autograd. The only care taken is for networks that are
nearly certain: log q(y) is written without the difference 1 − q(y), so that autograd never forms it either.
"""

import copy
import itertools
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_map

Terms = list[tuple[Tensor | float, Tensor]]
"""The weighted scores of one sample: pairs of w_y and s_y."""

Scores = Callable[[Tensor, Tensor | None], list[Terms]]
"""From a sample's outputs and its target to its terms; several lists where an input counts as several samples."""


def importance(
    model: nn.Module,
    data: Iterable[tuple[Any, Tensor | None]],
    scores: Scores,
    phi: Callable[[Tensor], Tensor],
    forward: Callable[[nn.Module, Any], Tensor] = lambda model, inputs: model(inputs),
) -> dict[str, Tensor]:
    """Return ω of every parameter; ``data`` holds inputs with a batch dimension of 1 and the target of that sample."""
    model = copy.deepcopy(model).double().eval()
    parameters = dict(model.named_parameters())
    for parameter in parameters.values():
        parameter.requires_grad_(True)
    totals = {name: torch.zeros_like(parameter) for name, parameter in parameters.items()}
    samples = 0
    for inputs, target in data:
        outputs = forward(model, tree_map(_double, inputs))[0]
        for terms in scores(outputs, target):
            samples += 1
            for weight, score in terms:
                gradients = torch.autograd.grad(
                    score, list(parameters.values()), retain_graph=True, allow_unused=True, materialize_grads=True
                )
                for name, gradient in zip(parameters, gradients, strict=True):
                    totals[name] += float(weight) * phi(gradient)
    return {name: total.detach() / samples for name, total in totals.items()}


def outer_products(
    model: nn.Module,
    data: Iterable[tuple[Any, Tensor | None]],
    scores: Scores,
    names: Sequence[str] | None = None,
    forward: Callable[[nn.Module, Any], Tensor] = lambda model, inputs: model(inputs),
) -> Tensor:
    """Return E_x Σ_y w_y ggᵀ, with g the gradient of the parameters of these names, in this order, as one vector.

    By default it is of all of them, in the order of their names.
    """
    model = copy.deepcopy(model).double().eval()
    parameters = dict(model.named_parameters())
    for parameter in parameters.values():
        parameter.requires_grad_(True)
    chosen = [parameters[name] for name in (sorted(parameters) if names is None else names)]
    total = torch.zeros([sum(p.numel() for p in chosen)] * 2, dtype=torch.float64)
    samples = 0
    for inputs, target in data:
        outputs = forward(model, tree_map(_double, inputs))[0]
        for terms in scores(outputs, target):
            samples += 1
            for weight, score in terms:
                gradients = torch.autograd.grad(
                    score, chosen, retain_graph=True, allow_unused=True, materialize_grads=True
                )
                g = torch.cat([gradient.flatten() for gradient in gradients])
                total += float(weight) * g.outer(g)
    return total / samples


def one_by_one(inputs: Any, targets: Tensor | None = None) -> list[tuple[Any, Tensor | None]]:
    """Split a batch into samples with a batch dimension of 1."""
    first = inputs if isinstance(inputs, Tensor) else next(x for x in _leaves(inputs) if isinstance(x, Tensor))
    return [
        (
            tree_map(lambda x, n=n: x[n : n + 1] if isinstance(x, Tensor) else x, inputs),
            None if targets is None else targets[n],
        )
        for n in range(len(first))
    ]


def log_q(z: Tensor, y: int) -> Tensor:
    """Return log q(y) = −log(1 + Σ_{k≠y} exp(z_k − z_y)): neither it nor its gradient takes a difference 1 − q."""
    others = torch.cat([z[:y], z[y + 1 :]]) - z[y]
    return -torch.logaddexp(torch.zeros((), dtype=z.dtype), others.logsumexp(0))


def q(z: Tensor, y: int) -> float:
    return float(log_q(z, y).detach().exp())


def every_label(outputs: Tensor, target: Tensor | None = None) -> list[Terms]:
    """log q(y) weighted by q(y): Fisher (φ = square) and AF (φ = abs), of outputs ``[C]``."""
    return [[(q(outputs, y), log_q(outputs, y)) for y in range(len(outputs))]]


def every_joint_label(outputs: Tensor, target: Tensor | None = None) -> list[Terms]:
    """The same for outputs ``[P, C]`` as one sample: every combination of labels, C^P of them."""
    positions = _counted(outputs, target)
    if not positions:
        return []
    terms: Terms = []
    for labels in itertools.product(range(outputs.shape[-1]), repeat=len(positions)):
        score = sum(log_q(z, y) for z, y in zip(positions, labels, strict=True))
        terms.append((torch.as_tensor(score).exp().detach(), score))
    return [terms]


def true_label(outputs: Tensor, target: Tensor | None) -> list[Terms]:
    """log q of the target: the empirical Fisher."""
    assert target is not None
    return [[(1.0, log_q(outputs, int(target)))]]


def joint_true_label(outputs: Tensor, target: Tensor | None) -> list[Terms]:
    """The sum of log q of the targets that count, for outputs ``[P, C]``."""
    assert target is not None
    z, labels = outputs.reshape(-1, outputs.shape[-1]), target.reshape(-1)
    terms = [log_q(z[p], int(labels[p])) for p in range(len(z)) if labels[p] != -100]
    return [[(1.0, sum(terms))]] if terms else []


def every_value(outputs: Tensor, target: Tensor | None = None) -> list[Terms]:
    """log p(y) of real values y = z + ε, ε ~ N(0, I), for outputs of any shape.

    The mean of a square over ε is that over ε = ±1 in every direction: a quadrature that is exact for it.
    """
    z = outputs.reshape(-1)
    terms: Terms = []
    for signs in itertools.product((-1.0, 1.0), repeat=len(z)):
        y = z.detach() + torch.tensor(signs, dtype=z.dtype)
        terms.append((0.5 ** len(z), -0.5 * (y - z).square().sum()))
    return [terms]


def true_value(outputs: Tensor, target: Tensor | None) -> list[Terms]:
    """log p of the values given."""
    assert target is not None
    return [[(1.0, -0.5 * (target.double().reshape(-1) - outputs.reshape(-1)).square().sum())]]


def log_q_of_each(z: Tensor, t: Iterable[float]) -> Tensor:
    """Return Σ log q(t) of labels that are each 0 or 1: log σ(z) for 1 and log σ(−z) for 0."""
    sides = torch.tensor([2.0 * label - 1 for label in t], dtype=z.dtype)
    return torch.nn.functional.logsigmoid(sides * z).sum()


def every_set_of_labels(outputs: Tensor, target: Tensor | None = None) -> list[Terms]:
    """log q(t) weighted by q(t), for outputs of any shape: every t of 0s and 1s, 2^K of them."""
    z = outputs.reshape(-1)
    scores = [log_q_of_each(z, t) for t in itertools.product((0.0, 1.0), repeat=len(z))]
    return [[(score.detach().exp(), score) for score in scores]]


def true_set_of_labels(outputs: Tensor, target: Tensor | None) -> list[Terms]:
    """log q of the labels given."""
    assert target is not None
    return [[(1.0, log_q_of_each(outputs.reshape(-1), target.reshape(-1).tolist()))]]


def squared_sigmoids(outputs: Tensor, target: Tensor | None = None) -> list[Terms]:
    """MAS of labels that are each 0 or 1: ‖σ(z)‖², summed over positions."""
    return _summed(lambda z: (2 * torch.nn.functional.logsigmoid(z)).exp().sum(), outputs, None)


def squared_largest_sigmoid(outputs: Tensor, target: Tensor | None = None) -> list[Terms]:
    """MASX of them: (max σ(z))², summed over positions."""
    return _summed(lambda z: (2 * torch.nn.functional.logsigmoid(z.max())).exp(), outputs, None)


def squared_norm(outputs: Tensor, target: Tensor | None = None) -> list[Terms]:
    """MAS: ‖q‖² = 1 − Σ_{j≠k} q_j q_k, summed over positions."""

    def of_position(z: Tensor) -> Tensor:
        log = [log_q(z, y) for y in range(len(z))]
        return 1 - torch.stack([(a + b).exp() for a, b in itertools.permutations(log, 2)]).sum()

    return _summed(of_position, outputs, target)


def squared_maximum(outputs: Tensor, target: Tensor | None = None) -> list[Terms]:
    """MASX: (max q)², summed over positions."""
    return _summed(lambda z: (2 * log_q(z, int(z.argmax()))).exp(), outputs, target)


def squared_logits(outputs: Tensor, target: Tensor | None = None) -> list[Terms]:
    """MAS on logits: ‖z‖²."""
    return _summed(lambda z: z.square().sum(), outputs, target)


def squared_maximum_logit(outputs: Tensor, target: Tensor | None = None) -> list[Terms]:
    """MASX on logits: (max z)²."""
    return _summed(lambda z: z.max().square(), outputs, target)


def separately(scores: Scores) -> Scores:
    """Take each position of outputs ``[P, C]`` that counts as a sample of its own."""

    def of_each(outputs: Tensor, target: Tensor | None = None) -> list[Terms]:
        z = outputs.reshape(-1, outputs.shape[-1])
        labels = [None] * len(z) if target is None else list(target.reshape(-1))
        counted = [(row, label) for row, label in zip(z, labels, strict=True) if label is None or label != -100]
        return [terms for row, label in counted for terms in scores(row, label)]

    return of_each


def summed_over_positions(scores: Scores) -> Scores:
    """Take an input as one sample whose terms are those of all its positions."""

    def of_all(outputs: Tensor, target: Tensor | None = None) -> list[Terms]:
        terms = [term for terms in separately(scores)(outputs, target) for term in terms]
        return [terms] if terms else []

    return of_all


def relative_error(found: Tensor, expected: Tensor) -> float:
    """Return ‖a − b‖ / ‖b‖, and 0 for two zeros."""
    gap = (found.double() - expected).norm()
    return float(gap / expected.norm()) if float(gap) > 0 else 0.0


def _summed(score: Callable[[Tensor], Tensor], outputs: Tensor, target: Tensor | None) -> list[Terms]:
    """One score, the sum over the positions that count; no sample where none does."""
    positions = _counted(outputs, target)
    return [[(1.0, torch.stack([score(z) for z in positions]).sum())]] if positions else []


def _counted(outputs: Tensor, target: Tensor | None) -> list[Tensor]:
    z = outputs.reshape(-1, outputs.shape[-1])
    if target is None or target.numel() != len(z):
        return list(z)
    return [row for row, label in zip(z, target.reshape(-1), strict=True) if label != -100]


def _double(leaf: Any) -> Any:
    return leaf.double() if isinstance(leaf, Tensor) and leaf.is_floating_point() else leaf


def _leaves(tree: Any) -> list[Any]:
    found: list[Any] = []
    tree_map(found.append, tree)
    return found
