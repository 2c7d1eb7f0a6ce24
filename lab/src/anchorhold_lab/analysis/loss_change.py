"""Loss change allocation: which weights lowered the loss, step by step along the path of a training."""

import contextlib
import itertools
import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from anchorhold.engine.isolation import isolated
from anchorhold.errors import ConfigurationError, ModelError, NotFiniteError, OptimizerError, OrderError, warn
from anchorhold.guard.stepping.optimizers.accepted import ids, innermost, is_within_its_own_step, trained_by
from anchorhold.settings import check_keys, number, whole_number
from anchorhold.tensors.names import named_buffers, named_parameters
from anchorhold.tensors.sharding import is_sharded
from anchorhold_lab.analysis.simpson import integrate
from anchorhold_lab.analysis.whole_loss import Point, loss_and_gradient, weights_at

MOST_SPLITS = 32
"""Splits of one step, unless more are asked for."""

_BY_WEIGHT = ("by_weight", "left_end")
_COUNTS = ("helps", "hurts", "zeros")
_NUMBERS = ("steps", "decrease", "loss_before", "loss_after", "splits", "most_splits", "split_steps", "unsettled")


class LossChangeAllocation:
    r"""Allocates each change of the full training loss L to the weights (Lan et al. 2019, arXiv 1909.01440).

    A step from θ to θ + Δ lowers the loss by :math:`\sum_i A_i`, where weight i has the part

    .. math:: A_i = -\Delta_i \int_0^1 \nabla_i L(\theta + s\Delta)\,ds.

    The integral is taken by Simpson's rule with the gradient over all data at both ends of the step and in its middle;
    intervals are split until the sum over the weights is the decrease of the loss to within ``tolerance``. Parts are
    positive where a weight's move lowered the loss, as for SI (Lan et al. count the other way round). That the sum is
    right says nothing of each part where errors cancel; a smaller tolerance does.

    >>> def full_loss():
    ...     for x, y in batches:
    ...         yield F.cross_entropy(model(x), y, reduction="sum") / samples
    >>> allocation = LossChangeAllocation(model, full_loss, tolerance=1e-4)
    >>> with allocation.along(optimizer):
    ...     train()
    >>> print(allocation)

    The loss is taken in evaluation mode and full precision, and leaves no trace in the training. A step costs two
    passes over all data, forward and backward, and two more for each split.

    Args:
        model: what is trained; weights that need no gradient when a step begins have no part in it.
        loss: returns L at the weights that the model has when it is called, or yields parts of which L is the sum, each
            differentiated before the next is asked for. The same weights have to give the same loss.
        tolerance: how far the sum over weights may be from the decrease over one step, in units of the loss.
        most_splits: how often a step is split at most; what is then still further off is told once, and counted.
    """

    def __init__(
        self,
        model: nn.Module,
        loss: Callable[[], Tensor | Iterable[Tensor]],
        *,
        tolerance: float = 1e-4,
        most_splits: int = MOST_SPLITS,
    ) -> None:
        if not callable(loss):
            raise ConfigurationError(
                f"loss is a {type(loss).__name__}; expected a function without arguments that returns the loss over "
                "all data, or yields its parts: it is called again at every step."
            )
        self.model = model
        self.tolerance = number("tolerance", tolerance, "a number above 0", lambda value: value > 0)
        self.split_limit = whole_number("most_splits", most_splits, "a whole number, 0 or more", 0)
        self._loss = loss
        self.by_weight: dict[str, Tensor] = {}
        """A of every weight, added up over all steps, by parameter name and in float64."""
        self.left_end: dict[str, Tensor] = {}
        """The same with the gradient of each step's beginning alone, −Δ∇L(θ): what sums like SI's are without noise."""
        self.counts: dict[str, dict[str, int]] = {}
        """By parameter name, how many (weight, step) pairs lowered the loss (``helps``), raised it (``hurts``), and
        did neither (``zeros``)."""
        self.steps = 0
        """Steps seen."""
        self.decrease = 0.0
        """What the steps lowered the loss by."""
        self.loss_before = self.loss_after = math.nan
        """L before the first step and after the last."""
        self.splits = 0
        """Splits of all steps."""
        self.most_splits = 0
        """Splits of the step that had most."""
        self.split_steps = 0
        """Steps that were split at all."""
        self.unsettled = 0
        """Steps that are further off than the tolerance."""
        self._before: tuple[dict[str, nn.Parameter], dict[str, Tensor], Point] | None = None
        self._end: tuple[dict[str, Tensor], Point] | None = None

    @property
    def total(self) -> float:
        """The sum of A over all weights and steps, which should be the decrease."""
        return math.fsum(float(value.sum()) for value in self.by_weight.values())

    @property
    def error(self) -> float:
        """How far the total is above the decrease."""
        return self.total - self.decrease

    @property
    def elsewhere(self) -> float:
        """What the loss fell by between one step and the next: by statistics of batch norm, or weights moved there."""
        return self.loss_before - self.loss_after - self.decrease if self.steps else 0.0

    @property
    def helps(self) -> float:
        """The share of (weight, step) pairs that lowered the loss."""
        return self._share("helps")

    @property
    def hurts(self) -> float:
        """The share of (weight, step) pairs that raised the loss."""
        return self._share("hurts")

    @property
    def zeros(self) -> float:
        """The share of (weight, step) pairs that did neither: the weight stood still, or had no gradient."""
        return self._share("zeros")

    def begin(self) -> None:
        """Look at the weights before a step; :meth:`along` does it for an optimizer."""
        parameters = _trained(self.model)
        before = self._state()
        if self._end is not None and _same(before, self._end[0]):
            point = self._end[1]
            if set(point.gradient) != set(parameters):  # some were frozen, or are no longer
                point = self._point(parameters)
        else:
            point = self._point(parameters)
        self._before = parameters, before, point

    def end(self) -> None:
        """Look at the weights after the step, and allocate what it changed."""
        if self._before is None:
            raise OrderError("end() was called without begin() before the step, where the weights still were.")
        (parameters, before, first), self._before = self._before, None
        self._end = None
        last = self._point(parameters)
        start = {name: before[name].double() for name in parameters}
        move = {name: p.detach().double() - start[name] for name, p in parameters.items()}

        def at(s: float) -> Point:
            values = {name: (start[name] + s * move[name]).to(p.dtype) for name, p in parameters.items()}
            with weights_at(parameters, values):
                return self._point(parameters)

        found = integrate((first, last), at, move, self.tolerance, self.split_limit)
        _add_up(self.left_end, {name: -move[name] * gradient for name, gradient in first.gradient.items()})
        self._add({name: -move[name] * mean for name, mean in found.gradient.items()})
        if not self.steps:
            self.loss_before = first.loss
        self.loss_after = last.loss
        self.steps += 1
        self.decrease += first.loss - last.loss
        self.splits += found.splits
        self.most_splits = max(self.most_splits, found.splits)
        self.split_steps += found.splits > 0
        self._end = self._state(), last
        if found.error > self.tolerance:
            self._tell_unsettled(found.error)

    @contextlib.contextmanager
    def along(self, *optimizers: Optimizer) -> Iterator["LossChangeAllocation"]:
        """Allocate every step that these optimizers take within the ``with`` block.

        A guard that moves weights after steps is to be attached before, so that its moves are part of them.
        """
        inner = [self._checked(optimizer) for optimizer in optimizers]
        if not inner:
            raise OptimizerError("along() was given no optimizer; expected all that train the model.")
        steps, handles = self.steps, []
        for optimizer in inner:
            handles.append(optimizer.register_step_pre_hook(torch.compiler.disable(self._pre_hook)))
            handles.append(optimizer.register_step_post_hook(torch.compiler.disable(self._post_hook)))
        try:
            yield self
        finally:
            for handle in handles:
                handle.remove()
            self._before = self._end = None
        if self.steps == steps:
            warn(
                "No step was seen: the optimizers that were given to along() took none within the block. Give it those "
                "whose step() the training calls, or call begin() and end() around each step."
            )

    def state_dict(self) -> dict[str, Any]:
        """Return all that was found so far, to go on from."""
        return {
            **{kind: {name: value.clone() for name, value in getattr(self, kind).items()} for kind in _BY_WEIGHT},
            "counts": {name: dict(counts) for name, counts in self.counts.items()},
            **{name: getattr(self, name) for name in _NUMBERS},
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from what was found before."""
        check_keys(state, (*_BY_WEIGHT, "counts", *_NUMBERS), "A state of LossChangeAllocation")
        shapes = {name: p.shape for name, p in named_parameters(self.model)}
        for name, value in itertools.chain.from_iterable(state[kind].items() for kind in _BY_WEIGHT):
            if shapes.get(name) != value.shape:
                raise ConfigurationError(
                    f"A state of LossChangeAllocation has {name!r} of shape {tuple(value.shape)}, which the model has "
                    "not; expected the state of a model with the same parameters."
                )
        devices = {name: p.device for name, p in named_parameters(self.model)}
        for kind in _BY_WEIGHT:
            setattr(self, kind, {name: value.to(devices[name], copy=True) for name, value in state[kind].items()})
        self.counts = {name: dict(counts) for name, counts in state["counts"].items()}
        for name in _NUMBERS:
            setattr(self, name, state[name])
        self._before = self._end = None

    def __str__(self) -> str:
        if not self.steps:
            return "LossChangeAllocation: no step yet"
        lines = [
            f"{self.steps} steps lowered the loss by {self.decrease:.6g}, to {self.loss_after:.6g}",
            f"the weights' parts add up to {self.total:.6g} ({self.error:+.2g})",
            f"(weight, step) pairs: {self.helps:.2%} help, {self.hurts:.2%} hurt, {self.zeros:.2%} do neither",
            f"{self.splits} splits in {self.split_steps} steps, at most {self.most_splits}",
            f"{self.unsettled} steps are further off than {self.tolerance:g}",
            *(f"  {name}: {float(value.sum()):+.4g}" for name, value in self.by_weight.items()),
        ]
        if abs(self.elsewhere) > self.tolerance:
            lines.insert(1, f"between steps the loss fell by {self.elsewhere:.6g}")
        return "\n".join(lines)

    def _share(self, which: str) -> float:
        pairs = sum(sum(counts.values()) for counts in self.counts.values())
        return sum(counts[which] for counts in self.counts.values()) / pairs if pairs else math.nan

    def _state(self) -> dict[str, Tensor]:
        """Return copies of all that decides the loss: weights and buffers."""
        named = itertools.chain(named_parameters(self.model), named_buffers(self.model))
        return {name: tensor.detach().clone() for name, tensor in named}

    def _point(self, parameters: Mapping[str, nn.Parameter]) -> Point:
        """Return L and ∇L at the weights that the model has."""
        with isolated(self.model, parameters.values()):
            loss, gradient = loss_and_gradient(self._parts(), parameters)
        value = float(loss)
        sums = torch.stack([each.sum() for each in gradient.values()])
        if not math.isfinite(value) or not bool(sums.isfinite().all()):
            raise NotFiniteError(
                f"The loss over all data is {value}, or its gradient is not finite: it cannot be allocated. What was "
                "found for the steps before is still there."
            )
        return Point(value, gradient)

    def _parts(self) -> Iterator[tuple[Tensor, float]]:
        found = self._loss()
        count = 0
        for part in found if isinstance(found, Iterable) and not isinstance(found, Tensor) else [found]:
            if not isinstance(part, Tensor) or part.numel() != 1 or not part.requires_grad:
                what = f"a tensor of shape {tuple(part.shape)}" if isinstance(part, Tensor) else f"{part!r:.60}"
                raise ModelError(
                    f"The loss gave {what}, which cannot be differentiated; expected a tensor with one element, "
                    "computed from the model's weights when it is called, and not under torch.no_grad()."
                )
            count += 1
            yield part.reshape(()), 1.0
        if not count:
            raise ModelError(
                "The loss gave no parts; expected at least one each time that it is called. A generator or an iterator "
                "over batches is spent after one pass: begin a new one inside the function."
            )

    def _add(self, parts: Mapping[str, Tensor]) -> None:
        _add_up(self.by_weight, parts)
        for name, part in parts.items():
            helps, hurts = torch.stack([(part > 0).sum(), (part < 0).sum()]).tolist()
            counts = self.counts.setdefault(name, dict.fromkeys(_COUNTS, 0))
            for which, more in zip(_COUNTS, (helps, hurts, part.numel() - helps - hurts), strict=True):
                counts[which] += more

    def _tell_unsettled(self, error: float) -> None:
        self.unsettled += 1
        if self.unsettled == 1:
            warn(
                f"Step {self.steps} is off by {error:.2g} after {self.split_limit} splits; expected at most tolerance="
                f"{self.tolerance:g}. Such steps are counted in .unsettled. Use a larger tolerance; or more splits "
                "(most_splits=), if ReLUs have many kinks along large steps; or float64, if the tolerance is near 1e-6 "
                "of the loss, where float32 rounds. A loss that is not the same each time, or that depends on more "
                "than the model's weights, can never be allocated."
            )

    def _checked(self, optimizer: Optimizer) -> Optimizer:
        found = innermost(optimizer)
        if not isinstance(found, Optimizer):
            raise OptimizerError(
                f"along() was given a {type(optimizer).__name__}; expected a torch.optim.Optimizer. For other "
                "training, call begin() and end() around each step."
            )
        if not ids(trained_by(found)) & ids(self.model.parameters()):
            raise OptimizerError(
                f"The {type(found).__name__} trains none of the model's parameters; expected one that was made with "
                "them."
            )
        return found

    def _pre_hook(self, optimizer: Optimizer, *_: Any) -> None:
        if not is_within_its_own_step(optimizer):
            self.begin()

    def _post_hook(self, optimizer: Optimizer, *_: Any) -> None:
        if not is_within_its_own_step(optimizer):
            self.end()


def _trained(model: nn.Module) -> dict[str, nn.Parameter]:
    found = {name: p for name, p in named_parameters(model) if p.requires_grad}
    if not found:
        raise ModelError("No weight of the model needs a gradient; expected a model that is being trained.")
    for name, parameter in found.items():
        if is_sharded(parameter) or not parameter.is_floating_point():
            raise ModelError(
                f"{name!r} is {'sharded' if is_sharded(parameter) else parameter.dtype}; expected whole, real weights: "
                "the loss's change cannot be allocated to others."
            )
    return found


def _add_up(total: dict[str, Tensor], parts: Mapping[str, Tensor]) -> None:
    for name, part in parts.items():
        total[name] = total[name] + part if name in total else part


def _same(a: Mapping[str, Tensor], b: Mapping[str, Tensor]) -> bool:
    return a.keys() == b.keys() and all(a[name].shape == b[name].shape and torch.equal(a[name], b[name]) for name in a)
