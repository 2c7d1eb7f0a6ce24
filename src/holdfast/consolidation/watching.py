"""Watching an optimiser's steps: what happens just before and just after each of them.

Before a step, the penalty's gradient is added to the task's; after it, the measures that need Δ get it. Both walk
through the parameters once, in pieces that stay in cache, since memory traffic is all that this costs.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer, SparseAdam
from torch.utils.hooks import RemovableHandle

from holdfast.consolidation.amp import read_scaling
from holdfast.consolidation.ledger import state_dtype
from holdfast.consolidation.memory import Memory
from holdfast.consolidation.penalty import add_penalty_gradient, penalty_value
from holdfast.consolidation.pieces import in_pieces
from holdfast.errors import NotFiniteError, OptimizerError, OrderError
from holdfast.importance.measures import PathMeasure

Closure = Callable[[], Any]


@dataclass
class Observed:
    """The gradients that a user has given for the coming step, by parameter; ``None`` for a gradient of 0."""

    gradient: dict[str, Tensor | None] = field(default_factory=dict)
    independent: dict[str, Tensor | None] = field(default_factory=dict)
    samples: int | None = None


@dataclass
class Pending:
    """A parameter whose step is under way, for the measures that wait for Δ."""

    name: str
    parameter: nn.Parameter
    gradient: Tensor | None
    independent: Tensor | None
    before: Tensor
    task_gradient: Tensor | None
    """The user's own ``.grad``, to be put back after the step."""


class StepWatcher:
    """Observes, and holds back, the steps of optimisers."""

    def __init__(self, memory: Memory) -> None:
        self.memory = memory
        self.observed = Observed()
        self._pending: list[Pending] = []
        # Reused from step to step: the weights before it, and the gradient with the penalty's.
        self._before: dict[str, Tensor] = {}
        self._held_back: dict[str, Tensor] = {}

    @property
    def path_measures(self) -> dict[str, PathMeasure]:
        """The measures that want to see every step, by name."""
        ledgers = self.memory.ledgers.items()
        return {name: ledger.measure for name, ledger in ledgers if isinstance(ledger.measure, PathMeasure)}

    def hook(self, optimizer: Optimizer, *, hold: bool) -> list[RemovableHandle]:
        """Watch an optimiser, and add the penalty's gradient to its steps if ``hold``."""
        return [
            optimizer.register_step_pre_hook(partial(self._pre_hook, hold)),
            optimizer.register_step_post_hook(self._post_hook),
        ]

    def _pre_hook(
        self, hold: bool, optimizer: Optimizer, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]] | None:
        # args[0] is the optimiser itself.
        closure = args[1] if len(args) > 1 else kwargs.get("closure")
        if closure is None:
            self._begin(optimizer, hold=hold)
            return None
        wrapped = self._wrapped(closure, optimizer, hold=hold)
        if len(args) > 1:
            return (args[0], wrapped, *args[2:]), kwargs
        return args, {**kwargs, "closure": wrapped}

    def _wrapped(self, closure: Closure, optimizer: Optimizer, *, hold: bool) -> Closure:
        """Return a closure that gives the optimiser loss and gradient with the penalty's.

        An optimiser may evaluate it several times in one step. The first time is at the weights before the step, so
        that gradient is the one that measures see.
        """
        begun = False

        def evaluate() -> Any:
            nonlocal begun
            with torch.enable_grad():
                loss = closure()
            if not begun:
                begun = True
                self._begin(optimizer, hold=False, copy_gradients=True)
            memory = self.memory
            if not hold or not memory.anchor:
                return loss
            owned = self._owned(optimizer)
            with torch.no_grad():
                for name, parameter in owned.items():
                    self._before_step(name, parameter, None, None, hold=2 * memory.strength, in_place=True, measures={})
                value = penalty_value(owned, memory.importance, memory.anchor, memory.strength)
            return loss + (value.to(loss.device) if isinstance(loss, Tensor) else float(value))

        return evaluate

    @torch.no_grad()
    def _begin(self, optimizer: Optimizer, *, hold: bool, copy_gradients: bool = False) -> None:
        """Do what comes before a step, or raise before anything has changed."""
        if self._pending:  # the last step never ended; its buffers may still be some parameter's gradient
            self._held_back = {}
            self._pending = []
        scaling = read_scaling(optimizer)
        if scaling.skipped:
            self.observed = Observed()
            return
        memory = self.memory
        if not memory.steps:
            memory.refresh()
        owned = self._owned(optimizer)
        _refuse_sparse(owned)
        measures = self.path_measures
        seen = {}
        if measures:
            self._check_measures(measures, owned)
            seen = {name: self._seen(name, p, scaling.factor, copy=copy_gradients) for name, p in owned.items()}
        waiting = any(measure.needs_step for measure in measures.values())
        at_once = any(not measure.needs_step for measure in measures.values())
        if at_once:  # measures that all wait for the step have no state to spoil yet: the walk itself looks
            self._refuse_unless_finite(seen)
        strength = 2 * memory.strength * scaling.factor if hold else 0.0
        finite = True
        for name, parameter in owned.items():
            gradient, independent = seen.get(name, (None, None))
            if waiting:
                before = _buffer(self._before, name, parameter)
                self._pending.append(Pending(name, parameter, gradient, independent, before, parameter.grad))
            finite &= self._before_step(
                name, parameter, gradient, independent, hold=strength, in_place=not waiting, measures=measures
            )
        if not finite:
            self._refuse_unless_finite(seen)
        for name in owned:
            if waiting and name not in memory.start:
                memory.start[name] = self._before[name].clone()
            memory.steps[name] = memory.steps.get(name, 0) + 1

    def _before_step(
        self,
        name: str,
        parameter: nn.Parameter,
        gradient: Tensor | None,
        independent: Tensor | None,
        *,
        hold: float,
        in_place: bool,
        measures: dict[str, PathMeasure],
    ) -> bool:
        """Walk once through a parameter: measure what needs no Δ, keep the weights, add the penalty's gradient.

        Returns whether the gradients that are kept for after the step look finite, as far as that was looked at.
        """
        memory = self.memory
        anchor = memory.anchor.get(name) if hold else None
        importance = memory.importance[name] if anchor is not None else None
        if anchor is not None and parameter.grad is None:
            parameter.grad = torch.zeros_like(parameter)
        grad = parameter.grad
        out = grad
        if anchor is not None and not in_place:
            # The measures will want the task's gradient after the step, so the optimiser gets another tensor.
            parameter.grad = out = _buffer(self._held_back, name, parameter)
        before = None if in_place else self._before[name]
        at_once = [
            (measure, memory.ledgers[key].running_for(name, parameter))
            for key, measure in measures.items()
            if not measure.needs_step and self._moves(key, name, gradient, independent)
        ]
        if at_once and gradient is None:
            gradient = torch.zeros_like(at_once[0][1])
        samples = self.observed.samples
        look = not in_place and not at_once and parameter.device.type == "cpu"
        sums = []
        tensors = [parameter.detach(), grad, out, gradient, independent, importance, anchor, before]
        for theta, g_all, g_out, g, g_ind, omega, theta_star, kept, *states in in_pieces(
            [*tensors, *(state for _, state in at_once)]
        ):
            for (measure, _), state in zip(at_once, states, strict=True):
                assert state is not None and g is not None
                measure.update_(state, g, g_ind, None, samples)
            if kept is not None:
                assert theta is not None
                kept.copy_(theta)
            if look:
                sums += [seen.sum() for seen in (g, g_ind) if seen is not None]
            if theta_star is not None:
                assert theta is not None and g_all is not None and g_out is not None and omega is not None
                add_penalty_gradient(g_all, theta, omega, theta_star, factor=hold, out=g_out)
        return not sums or bool(torch.stack(sums).isfinite().all())

    @torch.no_grad()
    def _post_hook(self, optimizer: Optimizer, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Do what comes after a step."""
        for pending in self._pending:
            pending.parameter.grad = pending.task_gradient
            self._after_step(pending)
        self._pending = []
        for name in self._owned(optimizer):
            self.observed.gradient.pop(name, None)
            self.observed.independent.pop(name, None)

    def _after_step(self, pending: Pending) -> None:
        """Give Δ to the measures that wait for it."""
        gradient, independent = pending.gradient, pending.independent
        if gradient is None and independent is None:
            return
        measures = [(key, measure) for key, measure in self.path_measures.items() if measure.needs_step]
        states = [self.memory.ledgers[key].running_for(pending.name, pending.parameter) for key, _ in measures]
        if gradient is None:
            gradient = torch.zeros_like(states[0])
        if independent is None and any(measure.needs_independent_gradient for _, measure in measures):
            independent = torch.zeros_like(states[0])
        samples = self.observed.samples
        for theta, before, g, g_ind, *pieces in in_pieces(
            [pending.parameter.detach(), pending.before, gradient, independent, *states]
        ):
            assert theta is not None and before is not None and g is not None
            step = torch.sub(theta, before, out=before)  # the weights before the step are not needed again
            for (_, measure), state in zip(measures, pieces, strict=True):
                assert state is not None
                measure.update_(state, g, g_ind, step, samples)

    def _seen(
        self, name: str, parameter: nn.Parameter, factor: float, *, copy: bool
    ) -> tuple[Tensor | None, Tensor | None]:
        """Return the gradient that measures see and the independent one, in the precision of their state."""
        independent = self.observed.independent.get(name)
        if name in self.observed.gradient:
            return self.observed.gradient[name], independent
        gradient = parameter.grad
        if gradient is None:
            return None, independent
        gradient = gradient.to(state_dtype(parameter))
        if factor != 1.0:
            gradient = gradient / factor
        elif copy and gradient is parameter.grad:
            gradient = gradient.clone()
        return gradient, independent

    def _moves(self, key: str, name: str, gradient: Tensor | None, independent: Tensor | None) -> bool:
        """Whether a step changes a measure's state: a gradient of 0 still ages an average that has begun."""
        return gradient is not None or independent is not None or name in self.memory.ledgers[key].running

    def _owned(self, optimizer: Optimizer) -> dict[str, nn.Parameter]:
        """Return the protected parameters that this optimiser trains."""
        ids = {id(parameter) for group in optimizer.param_groups for parameter in group["params"]}
        return {name: p for name, p in self.memory.parameters.items() if id(p) in ids and p.requires_grad}

    def _check_measures(self, measures: dict[str, PathMeasure], owned: Iterable[str]) -> None:
        """Refuse a step for which some measure lacks what it needs."""
        for key, measure in measures.items():
            measure.check_step(self.observed.samples)
            if measure.needs_independent_gradient and any(name not in self.observed.independent for name in owned):
                how = "observe_independent(loss)" + ("" if measure.needs_step else " or backward_halves(first, second)")
                raise OrderError(
                    f"{key} needs a second, independent gradient before every step and got none. Call {how} before "
                    "optimizer.step()."
                )

    def _refuse_unless_finite(self, seen: dict[str, tuple[Tensor | None, Tensor | None]]) -> None:
        """Refuse a NaN or an infinity before it spoils anything; on a CPU, where looking costs little.

        An accelerator would have to be waited for at every step: there, the end of the task finds it.
        """
        for name, gradients in seen.items():
            for gradient in gradients:
                # The sum is not finite if any element is not; the reverse is rare, and then looked into.
                if gradient is None or gradient.device.type != "cpu" or bool(gradient.sum().isfinite()):
                    continue
                if not bool(gradient.isfinite().all()):
                    for pending in self._pending:
                        pending.parameter.grad = pending.task_gradient
                    self._pending = []
                    step = self.memory.steps.get(name, 0) + 1
                    raise NotFiniteError(
                        f"The gradient of {name!r} holds a NaN or an infinity at step {step} of this task. The step "
                        "was not taken and nothing was recorded. Look at this batch and its loss; zero the "
                        "gradients to go on without it."
                    )


def check_optimizer(optimizer: object) -> None:
    """Refuse what cannot be observed."""
    if not isinstance(optimizer, Optimizer):
        raise OptimizerError(
            f"attach() was given a {type(optimizer).__name__}; expected a torch.optim.Optimizer. For a wrapper, attach "
            "the optimiser inside it."
        )
    if isinstance(optimizer, SparseAdam):
        raise OptimizerError("SparseAdam takes sparse gradients only, and a penalty is dense. Use Adam.")
    if any(group.get("maximize") for group in optimizer.param_groups):
        raise OptimizerError(
            "An optimiser with maximize=True would climb the penalty too. Minimise the negative objective instead."
        )


def _refuse_sparse(parameters: dict[str, nn.Parameter]) -> None:
    for name, parameter in parameters.items():
        if parameter.grad is not None and parameter.grad.is_sparse:
            raise OptimizerError(
                f"{name!r} has a sparse gradient, which cannot be measured or held. Use Embedding(sparse=False), or "
                "leave it out of protect."
            )


def _buffer(buffers: dict[str, Tensor], name: str, like: Tensor) -> Tensor:
    """Return a buffer for a parameter, made anew when the parameter has changed."""
    kept = buffers.get(name)
    if kept is None or kept.shape != like.shape or kept.dtype != like.dtype or kept.device != like.device:
        kept = buffers[name] = torch.empty_like(like, requires_grad=False)
    return kept
