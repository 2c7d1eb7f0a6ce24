"""The gradients of one step, of one run or of several at once."""

from collections.abc import Callable, Sequence
from typing import Protocol

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import functional_call, grad_and_value, vmap

from holdfast.models import Dropout, MultiHead
from holdfast.training.fast.compiling import compiled
from holdfast.training.fast.masks import Masks
from holdfast.training.learner import Learner

Gradients = dict[str, Tensor]

RANDOM = (
    *(nn.Dropout, nn.Dropout1d, nn.Dropout2d, nn.Dropout3d, nn.AlphaDropout, nn.FeatureAlphaDropout),
    *(nn.RReLU, nn.RNNBase, nn.MultiheadAttention, nn.TransformerEncoderLayer, nn.TransformerDecoderLayer),
)
"""Layers that may draw numbers of their own while training."""


class GradientSource(Protocol):
    """Computes gradients for a lane of L runs."""

    def begin_task(self, task: int) -> None:
        """Learn this task from now on."""

    def __call__(self, x: Tensor, y: Tensor, *, dropping: bool) -> tuple[Gradients, Tensor]:
        """Return the gradient of each parameter, ``[L, *shape]``, and the losses ``[L]``, given ``[L, B, ...]``."""


class ModuleGradients:
    """One run's gradients, by calling its network as it is: for any module, on any device."""

    def __init__(self, learner: Learner) -> None:
        self.learner = learner
        self.task = 0

    def begin_task(self, task: int) -> None:
        """Use the head of this task."""
        self.task = task

    def __call__(self, x: Tensor, y: Tensor, *, dropping: bool) -> tuple[Gradients, Tensor]:
        """Return the gradients of the one run."""
        learner = self.learner
        learner.model.train(dropping)
        parameters = trained_parameters(learner.model, learner.scenario.tasks[self.task].head)
        with torch.enable_grad():
            loss = learner.loss(x[0], y[0], self.task)
        found = torch.autograd.grad(loss, list(parameters.values()), allow_unused=True)
        gradients = {
            name: torch.zeros_like(p).unsqueeze(0) if g is None else g.unsqueeze(0)
            for (name, p), g in zip(parameters.items(), found, strict=True)
        }
        return gradients, loss.detach().unsqueeze(0)


class FunctionalGradients:
    """The gradients of one or several runs as a function of their weights, compiled where that helps.

    Several runs are one function mapped over its first dimension, which turns every linear layer into a batched
    matrix product. The network is used as a formula only: its own weights are not looked at.
    """

    def __init__(self, learners: Sequence[Learner], weights: Gradients, masks: Masks | None) -> None:
        first = learners[0]
        self.weights = weights
        self.masks = masks
        self.single = len(learners) == 1
        self.half = first.precision == "bf16"
        function = self._function(first.model, first.device.type)
        self._gradients: Callable[..., tuple[Gradients, Tensor]] = compiled(function, first.device)

    def begin_task(self, task: int) -> None:
        """Do nothing: all heads lie in the same place, one at a time."""

    def __call__(self, x: Tensor, y: Tensor, *, dropping: bool) -> tuple[Gradients, Tensor]:
        """Return the gradients of all runs of the lane."""
        masks = self.masks.draw() if self.masks is not None and dropping else {}
        return self._gradients(self.weights, masks, x, y)

    def _function(self, model: MultiHead, device: str) -> Callable[..., tuple[Gradients, Tensor]]:
        model.eval()  # dropout comes from masks, and nothing else here depends on the mode
        rounded = _rounded_names(model) if self.half else frozenset()

        def loss(weights: Gradients, masks: Gradients, x: Tensor, y: Tensor) -> Tensor:
            with torch.autocast(device, torch.bfloat16, enabled=self.half):
                logits = functional_call(model, {**weights, **masks}, (x, 0))
            return F.cross_entropy(logits.to(torch.promote_types(logits.dtype, torch.float32)), y)

        def one(weights: Gradients, masks: Gradients, x: Tensor, y: Tensor) -> tuple[Gradients, Tensor]:
            # Gradients stay in 16 bits until the update reads them: half the memory traffic.
            weights = {name: w.bfloat16() if name in rounded else w for name, w in weights.items()}
            gradients, value = grad_and_value(loss)(weights, masks, x, y)
            return gradients, value

        def single(weights: Gradients, masks: Gradients, x: Tensor, y: Tensor) -> tuple[Gradients, Tensor]:
            gradients, value = one(
                {name: w[0] for name, w in weights.items()}, {name: m[0] for name, m in masks.items()}, x[0], y[0]
            )
            return {name: g.unsqueeze(0) for name, g in gradients.items()}, value.unsqueeze(0)

        return single if self.single else vmap(one)


def trained_parameters(model: MultiHead, head: int) -> dict[str, nn.Parameter]:
    """Return the parameters that a task trains, its own head always under the name of the first."""
    body = {f"body.{name}": p for name, p in model.body.named_parameters() if p.requires_grad}
    own = {f"heads.0.{name}": p for name, p in model.heads[head].named_parameters() if p.requires_grad}
    return body | own


def is_a_formula(model: MultiHead) -> bool:
    """Whether a network's output is a function of its trained weights, its input and dropout masks alone.

    Buffers, frozen weights and layers that behave differently in training are each run's own; such networks are called
    as they are.
    """
    known = all(isinstance(module, Dropout) or not isinstance(module, RANDOM) for module in model.modules())
    return known and not list(model.buffers()) and all(p.requires_grad for p in model.parameters())


def is_all_linear(model: nn.Module) -> bool:
    """Whether all of a network's weights belong to linear layers, which batched matrix products serve best."""
    return all(isinstance(m, nn.Linear) or not list(m.parameters(recurse=False)) for m in model.modules())


def _rounded_names(model: nn.Module) -> frozenset[str]:
    """Return the parameters that autocast would round at every use."""
    return frozenset(
        f"{name}.{own}"
        for name, module in model.named_modules()
        if isinstance(module, nn.Linear | nn.Conv1d | nn.Conv2d)
        for own, _ in module.named_parameters(recurse=False)
    )
