r"""Importance from its formula and nothing else: float64, one sample at a time, every gradient by autograd.

.. math:: \omega = E_x \sum_y w_y(x)\, \varphi\!\left(\frac{\partial s_y(x)}{\partial \theta}\right)

A sample's outputs are ``[C]``, or ``[P, C]`` with several positions. The joint likelihood of positions is the sum of
theirs, whose exact Fisher is the sum of the positions' own; the mean absolute gradient (AF) is taken with each position
as a sample.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves, tree_map

Importance = dict[str, Tensor]
Forward = Callable[[nn.Module, Any], Tensor]


def call(model: nn.Module, inputs: Any) -> Tensor:
    """Call a model as everyone does."""
    if isinstance(inputs, dict):
        outputs = model(**inputs)
    else:
        outputs = model(*inputs) if isinstance(inputs, tuple) else model(inputs)
    value: Tensor = getattr(outputs, "logits", outputs)
    return value


def samples(inputs: Any, size: int) -> Iterator[Any]:
    """Yield the samples of a batch one by one; tensors of another length belong to all of them."""
    for n in range(size):
        yield tree_map(lambda x, n=n: x[n : n + 1] if isinstance(x, Tensor) and len(x) == size else x, inputs)


def size_of(inputs: Any) -> int:
    return len(next(leaf for leaf in tree_leaves(inputs) if isinstance(leaf, Tensor)))


def of_classes(model: nn.Module, inputs: Any, targets: Tensor, forward: Forward) -> dict[str, Importance]:
    """Return Fisher, empirical Fisher, AF and MAS of a model whose outputs are logits."""
    parameters = _parameters(model)
    total = {name: _Mean(parameters) for name in ("Fisher", "empirical Fisher", "AF", "MAS")}
    for sample, target in zip(samples(inputs, len(targets)), targets, strict=True):
        outputs = forward(model, sample)[0]
        log_q = outputs.reshape(-1, outputs.shape[-1]).log_softmax(-1)
        labels = target.reshape(-1)
        counted = [p for p in range(len(log_q)) if labels[p] != -100]
        if not counted:
            continue
        for p in counted:
            for y in range(log_q.shape[-1]):
                gradients = _gradients(log_q[p, y], parameters)
                weight = float(log_q[p, y].detach().exp())
                total["Fisher"].add(gradients, torch.square, weight)
                total["AF"].add(gradients, torch.abs, weight)
        likelihood = torch.stack([log_q[p, labels[p]] for p in counted]).sum()
        total["empirical Fisher"].add(_gradients(likelihood, parameters), torch.square)
        norm = torch.stack([log_q[p].exp().square().sum() for p in counted]).sum()
        total["MAS"].add(_gradients(norm, parameters), torch.abs)
        for name, mean in total.items():
            mean.samples += len(counted) if name == "AF" else 1
    return {name: mean.value() for name, mean in total.items()}


def of_values(model: nn.Module, inputs: Any, forward: Forward) -> dict[str, Importance]:
    """Return MAS of a model whose outputs are numbers: of ‖z‖²."""
    parameters = _parameters(model)
    total = _Mean(parameters)
    for sample in samples(inputs, size_of(inputs)):
        total.add(_gradients(forward(model, sample)[0].square().sum(), parameters), torch.abs)
        total.samples += 1
    return {"MAS on outputs": total.value()}


def of_numbers(
    model: nn.Module, inputs: Any, targets: Tensor, forward: Forward, *, binary: bool
) -> dict[str, Importance]:
    """Return Fisher and empirical Fisher of a regression with noise of variance 1, or of labels that are each 0 or 1.

    The outputs are independent of each other given the input, so that the exact Fisher is the sum of their own: of a
    value, that of its output's gradient, since E(z − y)² = 1; of a label, the mean over both of its values.
    """
    parameters = _parameters(model)
    total = {name: _Mean(parameters) for name in ("Fisher", "empirical Fisher", "MAS on outputs")}
    for sample, target in zip(samples(inputs, len(targets)), targets, strict=True):
        z = forward(model, sample)[0]
        for output in z.flatten():
            for weight, score in _labels(output) if binary else [(1.0, output)]:
                total["Fisher"].add(_gradients(score, parameters), torch.square, weight)
        error = -0.5 * (z - target.to(z.dtype)).square()
        likelihood = target * F.logsigmoid(z) + (1 - target) * F.logsigmoid(-z) if binary else error
        total["empirical Fisher"].add(_gradients(likelihood.sum(), parameters), torch.square)
        total["MAS on outputs"].add(_gradients(z.square().sum(), parameters), torch.abs)
        for mean in total.values():
            mean.samples += 1
    return {name: mean.value() for name, mean in total.items()}


def _labels(logit: Tensor) -> list[tuple[float, Tensor]]:
    """Return the probability and the log-likelihood of both values of a label."""
    return [(float(score.detach().exp()), score) for score in (F.logsigmoid(logit), F.logsigmoid(-logit))]


@contextmanager
def differentiable(model: nn.Module) -> Iterator[None]:
    """In eval mode, with a gradient for frozen parameters too; afterwards the model is as it was."""
    asked = [(p, p.requires_grad) for p in model.parameters() if p.is_floating_point() or p.is_complex()]
    modes = [(module, module.training) for module in model.modules()]
    try:
        for parameter, _ in asked:
            parameter.requires_grad_(True)
        for module, _ in modes:
            module.training = False
        yield
    finally:
        for parameter, wanted in asked:
            parameter.requires_grad_(wanted)
        for module, training in modes:
            module.training = training


class _Mean:
    """A weighted sum over labels, and the mean of it over samples."""

    def __init__(self, parameters: dict[str, nn.Parameter]) -> None:
        self.sums = {name: torch.zeros(p.shape, dtype=torch.float64) for name, p in parameters.items()}
        self.samples = 0

    def add(self, gradients: Importance, phi: Callable[[Tensor], Tensor], weight: float = 1.0) -> None:
        for name, gradient in gradients.items():
            self.sums[name] += weight * phi(gradient.abs().double())

    def value(self) -> Importance:
        return {name: value / self.samples for name, value in self.sums.items()}


def _parameters(model: nn.Module) -> dict[str, nn.Parameter]:
    """Return all parameters that can have a gradient, without the names of wrappers."""
    named = {name: p for name, p in model.named_parameters() if p.is_floating_point() or p.is_complex()}
    return {name.replace("_orig_mod.", "").removeprefix("module."): p for name, p in named.items()}


def _gradients(score: Tensor, parameters: dict[str, nn.Parameter]) -> Importance:
    found = torch.autograd.grad(
        score, list(parameters.values()), retain_graph=True, allow_unused=True, materialize_grads=True
    )
    return {name: g.to_dense() if g.is_sparse else g for name, g in zip(parameters, found, strict=True)}
