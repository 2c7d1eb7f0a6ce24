"""Watching somebody else train: the definitions that follow the path of the weights, in float64.

The recorder sees each batch in the network's forward pass and each step in the optimiser's hooks. It computes the
task's gradient itself, so that no penalty and no scaling of the library's own gets into it.
"""

import copy
from typing import Protocol

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.optim import Optimizer

from anchorhold import SI, Fisher
from anchorhold.measures.recurrences import add_to_path_, rescaled
from benchmarks.audit.problem import Problem

Weights = dict[str, Tensor]


class Follower(Protocol):
    """A definition that is added up step by step."""

    def step(self, batch: tuple[Tensor, Tensor], gradient: Weights, before: Weights, after: Weights) -> None:
        """Take one step of the optimiser into account."""

    def importance(self) -> Weights:
        """Return what the steps so far amount to."""


class Recorder:
    """Tells followers of every step that ``optimizer`` takes on ``network``, or of the first ``steps`` of them."""

    def __init__(
        self,
        problem: Problem,
        network: nn.Module,
        optimizer: Optimizer,
        *followers: Follower,
        steps: int | None = None,
    ) -> None:
        self.problem, self.network, self.followers, self.left = problem, network, followers, steps
        self.gradient: Weights = {}
        network.register_forward_pre_hook(self._see_inputs)
        optimizer.register_step_pre_hook(self._before_step)
        optimizer.register_step_post_hook(self._after_step)

    def _see_inputs(self, network: nn.Module, arguments: tuple[Tensor, ...]) -> None:
        self.inputs = arguments[0].detach()

    def _before_step(self, *_: object) -> None:
        self.batch = self.inputs, self.problem.labels_of(self.inputs)
        parameters: dict[str, Tensor] = dict(self.network.named_parameters())
        with torch.enable_grad():
            inputs, labels = self.batch
            loss = F.cross_entropy(torch.func.functional_call(self.network, parameters, (inputs,)), labels)
            found = torch.autograd.grad(loss, list(parameters.values()))
        self.gradient = {name: g.double() for name, g in zip(parameters, found, strict=True)}
        self.before = _weights(self.network)

    def _after_step(self, *_: object) -> None:
        if self.left is not None:
            if self.left == 0:
                return
            self.left -= 1
        after = _weights(self.network)
        for follower in self.followers:
            follower.step(self.batch, self.gradient, self.before, after)


class FollowSI:
    r"""SI: :math:`\max(0, -\sum g\Delta) / ((\theta(T)-\theta(0))^2 + \xi)`."""

    def __init__(self, damping: float) -> None:
        self.measure = SI(damping=damping)
        self.path: Weights = {}
        self.start: Weights = {}
        self.end: Weights = {}
        self.steps = 0

    def step(self, batch: tuple[Tensor, Tensor], gradient: Weights, before: Weights, after: Weights) -> None:
        if not self.start:
            self.start = before
            self.path = {name: torch.zeros_like(value) for name, value in before.items()}
        for name, path in self.path.items():
            add_to_path_(path, gradient[name], after[name] - before[name])
        self.end = after
        self.steps += 1

    def importance(self) -> Weights:
        return {
            name: self.measure.importance({"path": path}, self.end[name] - self.start[name], self.steps)
            for name, path in self.path.items()
        }

    def unclamped(self) -> Weights:
        """Return it without the maximum."""
        return {
            name: rescaled(path, self.end[name] - self.start[name], self.measure.damping)
            for name, path in self.path.items()
        }


class FollowRWalk:
    r"""RWalk (Chaudhry et al. 2018): a running Fisher information plus a score of the path, each scaled to at most 1.

    .. math::
        F \leftarrow \alpha F_B + (1-\alpha) F, \qquad
        s = \sum_{\Delta t}\frac{-\sum_{t} g_t\,\Delta_t}{\tfrac12 F\,(\theta(t+\Delta t)-\theta(t))^2 + \epsilon},
        \qquad \omega = \frac{F}{\max F} + \frac{\max(0, s)}{\max s}

    :math:`F_B` is the empirical Fisher information of the batch, the mean of its samples' squared gradients.

    Args:
        network: what is trained; a copy of it, made now, measures the batches.
        alpha: the weight of the newest batch.
        every: Δt, the steps between two terms of the score.
        epsilon: what keeps the score finite; the paper names no value, both libraries take float32's rounding error.
        square_of_mean: take the square of the batch's mean gradient for :math:`F_B`, which is not the definition.
    """

    def __init__(
        self, network: nn.Module, alpha: float, every: int, epsilon: float, *, square_of_mean: bool = False
    ) -> None:
        self.network = copy.deepcopy(network).double()
        self.alpha, self.every, self.epsilon, self.square_of_mean = alpha, every, epsilon, square_of_mean
        self.fisher: Weights = {}
        self.steps = 0

    def step(self, batch: tuple[Tensor, Tensor], gradient: Weights, before: Weights, after: Weights) -> None:
        of_batch = self._of_batch(batch, gradient, before)
        if not self.fisher:
            self.fisher = of_batch
            self.gained = {name: torch.zeros_like(value) for name, value in before.items()}
            self.score = {name: torch.zeros_like(value) for name, value in before.items()}
            self.checkpoint = before
        else:
            self.fisher = {n: self.alpha * of_batch[n] + (1 - self.alpha) * f for n, f in self.fisher.items()}
        for name, gained in self.gained.items():
            add_to_path_(gained, gradient[name], after[name] - before[name])
        self.steps += 1
        if self.steps % self.every == 0:
            for name, gained in self.gained.items():
                distance = 0.5 * self.fisher[name] * (after[name] - self.checkpoint[name]).square()
                self.score[name] += gained / (distance + self.epsilon)
                gained.zero_()
            self.checkpoint = after

    def importance(self) -> Weights:
        largest = max(float(value.max()) for value in self.fisher.values())
        highest = max(float(value.max()) for value in self.score.values())
        return {n: f / largest + self.score[n].clamp(min=0) / highest for n, f in self.fisher.items()}

    def _of_batch(self, batch: tuple[Tensor, Tensor], gradient: Weights, before: Weights) -> Weights:
        if self.square_of_mean or len(batch[0]) == 1:
            return {name: g.square() for name, g in gradient.items()}
        self.network.load_state_dict(before)
        inputs, labels = batch
        return Fisher(labels="true").measure(self.network, [(inputs.double(), labels)])


def _weights(network: nn.Module) -> Weights:
    return {name: parameter.detach().to(torch.float64, copy=True) for name, parameter in network.named_parameters()}
