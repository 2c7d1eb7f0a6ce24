"""The gradients of one step, of one run or of several at once."""

from typing import Protocol

import torch
from torch import Tensor, nn
from torch.func import functional_call, grad, grad_and_value, vmap

from anchorhold.measures import Fisher
from anchorhold_lab.networks import MultiHead
from anchorhold_lab.training.fast.dropout_masks import Masks
from anchorhold_lab.training.fast.recording import compiled
from anchorhold_lab.training.fast.sample_tables import Batches, fetch
from anchorhold_lab.training.learner import Learner, task_loss

Gradients = dict[str, Tensor]
_AT_ONCE = 16
"""Samples whose gradients are there at the same time."""


class GradientSource(Protocol):
    """Computes gradients for a lane of L runs."""

    def begin_task(self, task: int) -> None:
        """Learn this task from now on."""

    def __call__(self, orders: Tensor, step: Tensor, losses: Tensor | None, *, dropping: bool) -> Gradients:
        """Return the gradient of each parameter, ``[L, *shape]``.

        Args:
            orders: the samples of each step of the epoch, ``[L, steps, B]``.
            step: which step it is, on the device.
            losses: where to note the loss of each step, ``[L, steps]``, if at all.
            dropping: whether dropout is on.
        """

    def squares(self, orders: Tensor, step: Tensor) -> Gradients:
        """Return the mean of the squared gradients of a step's samples, each by itself, without dropout."""


class ModuleGradients:
    """One run's gradients, by calling its network as it is: for any module, on any device."""

    def __init__(self, learner: Learner, batches: Batches) -> None:
        self.learner = learner
        self.batches = batches
        self.task = 0

    def begin_task(self, task: int) -> None:
        """Use the head of this task."""
        self.task = task

    def __call__(self, orders: Tensor, step: Tensor, losses: Tensor | None, *, dropping: bool) -> Gradients:
        """Return the gradients of the one run."""
        learner = self.learner
        learner.model.train(dropping)
        parameters = trained_parameters(learner.model, learner.scenario.tasks[self.task].head)
        x, y = self.batches.fetch(orders, step)
        with torch.enable_grad():
            loss = learner.loss(x[0], y[0], self.task)
        found = torch.autograd.grad(loss, list(parameters.values()), allow_unused=True)
        if losses is not None:
            _note(losses, step, loss.detach().unsqueeze(0))
        return {
            name: torch.zeros_like(p).unsqueeze(0) if g is None else g.unsqueeze(0)
            for (name, p), g in zip(parameters.items(), found, strict=True)
        }

    def squares(self, orders: Tensor, step: Tensor) -> Gradients:
        """Return those of the one run, as its guard would find them."""
        learner, head = self.learner, self.learner.scenario.tasks[self.task].head
        learner.model.eval()
        x, y = self.batches.fetch(orders, step)
        collector = Fisher(labels="true").accumulator(
            learner.model, learner.guard.parameters, lambda model, inputs: model(inputs, head)
        )
        with torch.enable_grad():
            found = collector.result_of([(x[0], y[0])]).values
        parameters = trained_parameters(learner.model, head)
        return {name: found.get(name, torch.zeros_like(p)).unsqueeze(0) for name, p in parameters.items()}


class Formula:
    """A network's gradient as a function of weights, masks and a batch, compiled where that helps.

    For several runs it is mapped over a first dimension that counts them, which turns every linear layer into a
    batched matrix product. The network serves as a formula only: its own weights are not looked at.
    """

    def __init__(self, learner: Learner, *, runs: int) -> None:
        self._model = learner.model.eval()  # dropout comes from masks, and nothing else here depends on the mode
        self._device = learner.device.type
        self._half = learner.precision == "bf16"
        self._rounded = _rounded_names(learner.model) if self._half else frozenset()
        self._single = runs == 1
        self._compiled = compiled(self._run, learner.device)
        self._compiled_squares = compiled(self._squares, learner.device)

    def __call__(
        self,
        weights: Gradients,
        masks: Gradients,
        batches: Batches,
        orders: Tensor,
        step: Tensor,
        losses: Tensor | None,
    ) -> Gradients:
        """Return the gradients of some runs; everything has a first dimension that counts them."""
        data = batches.x, batches.y, batches.channels_last
        found: Gradients = self._compiled(weights, masks, *data, orders, step, losses)
        return found

    def squares(self, weights: Gradients, batches: Batches, orders: Tensor, step: Tensor) -> Gradients:
        """Return the mean of the squared gradients of some runs' samples."""
        found: Gradients = self._compiled_squares(weights, batches.x, batches.y, batches.channels_last, orders, step)
        return found

    def _squares(
        self, weights: Gradients, x: Tensor, y: Tensor, channels_last: bool, orders: Tensor, step: Tensor
    ) -> Gradients:
        batch = fetch(x, y, orders, step, channels_last=channels_last)
        if not self._single:
            return vmap(self._squares_of_one)(weights, *batch)
        own = self._squares_of_one({name: weight[0] for name, weight in weights.items()}, *(part[0] for part in batch))
        return {name: squares.unsqueeze(0) for name, squares in own.items()}

    def _squares_of_one(self, weights: Gradients, x: Tensor, y: Tensor) -> Gradients:
        """Return those of one run, a few samples at a time: each has a gradient as large as the network."""

        def of_sample(x: Tensor, y: Tensor) -> Gradients:
            found = grad(self._loss_in_full)(weights, x.unsqueeze(0), y.unsqueeze(0))
            return {name: g.square() for name, g in found.items()}

        total: Gradients = {}
        for some, labels in zip(x.split(_AT_ONCE), y.split(_AT_ONCE), strict=True):
            for name, squares in vmap(of_sample)(some, labels).items():
                total[name] = total.get(name, 0.0) + squares.sum(0)
        return {name: squares / len(y) for name, squares in total.items()}

    def _loss_in_full(self, weights: Gradients, x: Tensor, y: Tensor) -> Tensor:
        """Return the loss without dropout and in the weights' own precision, as measures from data have it."""
        own = next(iter(weights.values())).dtype
        logits = functional_call(self._model, weights, (x.to(own) if x.is_floating_point() else x, 0))
        return task_loss(logits, y)

    def _run(
        self,
        weights: Gradients,
        masks: Gradients,
        x: Tensor,
        y: Tensor,
        channels_last: bool,
        orders: Tensor,
        step: Tensor,
        losses: Tensor | None,
    ) -> Gradients:
        # The batch is looked up here, where a compiler can do it in the kernels that read it.
        batch = fetch(x, y, orders, step, channels_last=channels_last)
        if self._single:
            own_weights = {name: weight[0] for name, weight in weights.items()}
            own_masks = {name: mask[0] for name, mask in masks.items()}
            own, loss = self._one(own_weights, own_masks, *(part[0] for part in batch))
            gradients, loss = {name: g.unsqueeze(0) for name, g in own.items()}, loss.unsqueeze(0)
        else:
            gradients, loss = vmap(self._one)(weights, masks, *batch)
        if losses is not None:
            _note(losses, step, loss)
        return gradients

    def _one(self, weights: Gradients, masks: Gradients, x: Tensor, y: Tensor) -> tuple[Gradients, Tensor]:
        # Gradients stay in 16 bits until the update reads them: half the memory traffic.
        weights = {name: w.bfloat16() if name in self._rounded else w for name, w in weights.items()}
        gradients, loss = grad_and_value(self._loss)(weights, masks, x, y)
        return gradients, loss

    def _loss(self, weights: Gradients, masks: Gradients, x: Tensor, y: Tensor) -> Tensor:
        with torch.autocast(self._device, torch.bfloat16, enabled=self._half):
            logits = functional_call(self._model, {**weights, **masks}, (x, 0))
        return task_loss(logits, y)


class FunctionalGradients:
    """The gradients of the runs of a lane, through a formula."""

    def __init__(self, formula: Formula, weights: Gradients, batches: Batches, masks: Masks | None) -> None:
        self.formula = formula
        self.weights = weights
        self.batches = batches
        self.masks = masks

    def begin_task(self, task: int) -> None:
        """Do nothing: all heads lie in the same place, one at a time."""

    def __call__(self, orders: Tensor, step: Tensor, losses: Tensor | None, *, dropping: bool) -> Gradients:
        """Return the gradients of all runs of the lane."""
        masks = self.masks.draw() if self.masks is not None and dropping else {}
        return self.formula(self.weights, masks, self.batches, orders, step, losses)

    def squares(self, orders: Tensor, step: Tensor) -> Gradients:
        """Return those of all runs of the lane."""
        return self.formula.squares(self.weights, self.batches, orders, step)


def _note(losses: Tensor, step: Tensor, loss: Tensor) -> None:
    losses.index_copy_(1, step, loss.unsqueeze(1).to(losses.dtype))


def trained_parameters(model: MultiHead, head: int) -> dict[str, nn.Parameter]:
    """Return the parameters that a task trains, its own head always under the name of the first, each once."""
    found: dict[str, nn.Parameter] = {}
    seen: set[nn.Parameter] = set()
    own, others = f"heads.{head}.", tuple(f"heads.{i}." for i in range(len(model.heads)) if i != head)
    for name, parameter in model.named_parameters(remove_duplicate=False):
        if parameter.requires_grad and parameter not in seen and not name.startswith(others):
            seen.add(parameter)
            found[f"heads.0.{name.removeprefix(own)}" if name.startswith(own) else name] = parameter
    return found


def is_a_formula(learner: Learner) -> bool:
    """Whether a network's output is a function of its trained weights, its input and dropout masks alone.

    Buffers, frozen and tied weights, and layers that behave differently in training are each run's own; such networks
    are called as they are.
    """
    model, modes = learner.model, learner.modes
    everything = list(model.parameters())
    tied = len(everything) < len(list(model.named_parameters(remove_duplicate=False)))
    own = all(p.requires_grad for p in everything) and not list(model.buffers()) and not tied
    return own and not modes.differs and not modes.drops_twice and type(model) is MultiHead


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
