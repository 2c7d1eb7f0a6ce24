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
from torch.optim import Optimizer
from torch.utils.hooks import RemovableHandle

from holdfast.errors import NotFiniteError, OrderError
from holdfast.guard.distributed.rank_gradients import RankGradients
from holdfast.guard.memory import Memory
from holdfast.guard.steps.handed_gradients import HandedGradients, Lent, Overwriters
from holdfast.guard.steps.optimizers import give_each_its_own_gradient, ids, read_scaling, refuse_sparse, trained_by
from holdfast.holds.quadratic import add_penalty_gradient, penalty_value
from holdfast.measures import PathMeasure
from holdfast.tensors.pieces import in_pieces
from holdfast.tensors.sharding import local
from holdfast.tensors.storage import at_hand, put_back, running_dtype

Closure = Callable[[], Any]


@dataclass
class Observed:
    """The gradients that a user has given for the coming step, by parameter; ``None`` for a gradient of 0."""

    gradient: dict[str, Tensor | None] = field(default_factory=dict)
    independent: dict[str, Tensor | None] = field(default_factory=dict)
    samples: int | None = None

    def add(self, other: "Observed") -> None:
        """Add the gradients of another part of the same step's batch."""
        for mine, more in ((self.gradient, other.gradient), (self.independent, other.independent)):
            for name, gradient in more.items():
                known = mine.get(name)
                mine[name] = gradient if known is None else known if gradient is None else known + gradient
        self.samples = other.samples if other.samples is not None else self.samples


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
    lent: Lent | None = None
    """The same, where the optimiser was given it rather than another tensor."""
    handed: Tensor | None = None
    """What the optimiser was given: the user's own, or one that has the penalty's gradient in it."""


class StepWatcher:
    """Observes, and holds back, the steps of optimisers."""

    def __init__(self, memory: Memory) -> None:
        self.memory = memory
        self.observed = Observed()
        self.rank_gradients: RankGradients | None = None
        self._pending: list[Pending] = []
        # Reused from step to step: the weights before it, and the gradient with the penalty's.
        self._before: dict[str, Tensor] = {}
        self._held_back: dict[str, Tensor] = {}
        self._overwriters = Overwriters()
        self._passed_over: set[int] = set()
        self._handed: HandedGradients | None = None

    @property
    def path_measures(self) -> dict[str, PathMeasure]:
        """The measures that want to see every step, by name."""
        ledgers = self.memory.ledgers.items()
        return {name: ledger.measure for name, ledger in ledgers if isinstance(ledger.measure, PathMeasure)}

    def hook(self, optimizer: Optimizer, *, hold: bool) -> list[RemovableHandle]:
        """Watch an optimiser, and add the penalty's gradient to its steps if ``hold``."""
        # A compiled step calls the hooks as they are: what they do differs from parameter to parameter, so tracing them
        # would compile each anew.
        return [
            optimizer.register_step_pre_hook(torch.compiler.disable(partial(self._pre_hook, hold))),
            optimizer.register_step_post_hook(torch.compiler.disable(self._post_hook)),
        ]

    def release(self) -> None:
        """Let go of what was given for a step to come, and of what is reused, as large as two copies of the model."""
        self.observed = Observed()
        self._before = {}
        self._held_back = {}
        self._pending = []
        self._handed = None

    def __getstate__(self) -> dict[str, Any]:
        """Leave out what belongs to a step or to optimisers: a copy watches none yet."""
        return {"memory": self.memory}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__init__(state["memory"])  # type: ignore[misc]

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
        that gradient is the one that measures see. A closure may return nothing, as those of Lightning's manual
        optimisation do; one that leaves no gradient either has skipped this batch.
        """
        begun = False

        def evaluate() -> Any:
            nonlocal begun
            with torch.enable_grad():
                loss = closure()
            self.take_in_new(optimizer)
            if loss is None and all(parameter.grad is None for parameter in self._owned(optimizer).values()):
                return loss
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
                if loss is None:
                    return loss
                value = penalty_value(owned, memory.importance, memory.anchor, memory.strength)
            return loss + (value.to(loss.device) if isinstance(loss, Tensor) else float(value))

        return evaluate

    def take_in_new(self, optimizer: Optimizer) -> None:
        """Begin to watch what an optimiser trains that was not there before, or frozen.

        Layers are unfrozen in the middle of a task, and Lightning freezes all but one optimiser's for its step.
        """
        known = ids(self.memory.parameters.values()) | self._passed_over
        new = [parameter for parameter in trained_by(optimizer) if id(parameter) not in known]
        trainable = ids(parameter for parameter in new if parameter.requires_grad)
        if trainable:
            self.memory.refresh()
            # What the selection leaves out need not be looked up at every step.
            self._passed_over |= trainable - ids(self.memory.parameters.values())

    @torch.no_grad()
    def _begin(self, optimizer: Optimizer, *, hold: bool, copy_gradients: bool = False) -> None:
        """Do what comes before a step, or raise before anything has changed."""
        if self._is_tried_again(optimizer):
            return  # it is measured and held already
        self._let_go_of_last_step()
        scaling = read_scaling(optimizer)
        if scaling.skipped:
            return
        memory = self.memory
        if not memory.steps:
            memory.refresh()
            self._passed_over = set()
        self.take_in_new(optimizer)
        owned = self._owned(optimizer)
        refuse_sparse(owned)
        measures = self.path_measures
        waiting = any(measure.needs_step for measure in measures.values())
        strength = 2 * memory.strength * scaling.factor if hold else 0.0
        seen = {}
        if measures:
            self._check_measures(measures, owned)
            # What is held goes to the optimiser as another tensor; the rest it might overwrite.
            at_risk = waiting and self._overwriters.may_include(optimizer)
            lent = {name for name in owned if at_risk and not (strength and name in memory.anchor)}
            copied = owned.keys() if copy_gradients and waiting else lent
            seen = {name: self._seen(name, p, scaling.factor, copy=name in copied) for name, p in owned.items()}
        at_once = any(not measure.needs_step for measure in measures.values())
        if at_once:  # measures that all wait for the step have no state to spoil yet: the walk itself looks
            self._refuse_unless_finite(seen)
        held = {name: p for name, p in owned.items() if strength and name in memory.anchor}
        if not waiting:
            give_each_its_own_gradient(held.values())
        finite = True
        for name, parameter in owned.items():
            gradient, independent = seen.get(name, (None, None))
            if waiting:
                before = _buffer(self._before, name, parameter)
                self._pending.append(Pending(name, parameter, gradient, independent, before, parameter.grad))
            finite &= self._before_step(
                name, parameter, gradient, independent, hold=strength, in_place=not waiting, measures=measures
            )
        if waiting and memory.found_by_any_rank([] if finite else [True]):
            self._refuse_unless_finite(seen)
        self._count_step(owned, keep_start=waiting)
        if copy_gradients:  # a closure makes new gradients whenever it is called
            return
        self._lend(self._pending)
        if held or measures:
            self._handed = HandedGradients(optimizer, owned, held if not waiting else ())

    def _count_step(self, owned: dict[str, nn.Parameter], *, keep_start: bool) -> None:
        memory = self.memory
        for name, parameter in owned.items():
            if keep_start and name not in memory.start:
                memory.start[name] = memory.storage.exact(self._before[name].clone(), parameter)
            memory.steps[name] = memory.steps.get(name, 0) + 1

    def _let_go_of_last_step(self) -> None:
        self._handed = None
        if self._pending:  # it never ended; its buffers may still be some parameter's gradient
            self._held_back = {}
            self._pending = []

    def _is_tried_again(self, optimizer: Optimizer) -> bool:
        """Whether this very step has begun before, and raised; one that has ended is not to be taken twice."""
        if self._handed is None:
            return False
        owned = self._owned(optimizer)
        if self._handed.is_tried_again(optimizer, owned):
            return True
        if (name := self._handed.with_penalty(owned)) is not None:
            raise OrderError(
                f"The gradient of {name!r} is still that of the last step, with the penalty's in it: optimizer.step() "
                "was called again without a new backward pass, or by another optimiser that trains the same parameter. "
                "Call optimizer.zero_grad() and backward() before every step."
            )
        return False

    @staticmethod
    def _lend(stepping: Iterable[Pending]) -> None:
        """Note which gradients the optimiser is about to get as they are."""
        for pending in stepping:
            given, pending.handed = pending.task_gradient, pending.parameter.grad
            if given is not None and pending.parameter.grad is given:
                pending.lent = Lent(given, given._version, measured=pending.gradient is given)

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
        held = bool(hold) and name in memory.anchor
        anchor = at_hand(memory.anchor[name], parameter) if held else None
        importance = at_hand(memory.importance[name], parameter) if held else None
        if anchor is not None and parameter.grad is None:
            parameter.grad = torch.zeros_like(parameter, dtype=getattr(parameter, "grad_dtype", None))
        grad = parameter.grad
        out = grad
        if anchor is not None and not in_place:
            # The measures will want the task's gradient after the step, so the optimiser gets another tensor.
            assert grad is not None
            parameter.grad = out = _buffer(self._held_back, name, grad)
        before = None if in_place else self._before[name]
        at_once = [
            (measure, memory.ledgers[key].running_for(name, parameter))
            for key, measure in measures.items()
            if not measure.needs_step and self._moves(key, name, gradient, independent)
        ]
        running = [at_hand(state, parameter) for _, state in at_once]
        if at_once and gradient is None:
            gradient = torch.zeros_like(running[0])
        samples = self.observed.samples
        ranks = self.rank_gradients if name not in self.observed.independent else None
        if independent is None and ranks is None and any(m.needs_independent_gradient for m, _ in at_once):
            independent = torch.zeros_like(running[0])
        square = (
            ranks.mean_square(parameter, gradient) if ranks is not None and at_once and gradient is not None else None
        )
        look = not in_place and not at_once and parameter.device.type == "cpu"
        sums = []
        tensors = [parameter.detach(), grad, out, gradient, independent, square, importance, anchor, before]
        for theta, g_all, g_out, g, g_ind, g_square, omega, theta_star, kept, *states in in_pieces(
            [*tensors, *running]
        ):
            for (measure, _), state in zip(at_once, states, strict=True):
                assert state is not None and g is not None
                g = g.to(state.dtype)  # noqa: PLW2901 (in 16 bits a difference of gradients would lose its digits)
                if ranks is not None and g_square is not None and ranks.serves(measure):
                    ranks.update_(measure, state, g, g_square)
                else:
                    measure.update_(state, g, g_ind, None, samples)
            if kept is not None:
                assert theta is not None
                kept.copy_(theta)
            if look:
                sums += [seen.sum() for seen in (g, g_ind) if seen is not None]
            if theta_star is not None:
                assert theta is not None and g_all is not None and g_out is not None and omega is not None
                add_penalty_gradient(g_all, theta, omega, theta_star, factor=hold, out=g_out)
        for (_, kept_state), used in zip(at_once, running, strict=True):
            put_back(used, kept_state)
        return not sums or bool(torch.stack(sums).isfinite().all())

    @torch.no_grad()
    def _post_hook(self, optimizer: Optimizer, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Do what comes after a step."""
        self._overwriters.look(optimizer, [pending.lent for pending in self._pending if pending.lent is not None])
        for pending in self._pending:
            if pending.parameter.grad is pending.handed:  # some optimisers clear gradients in their steps
                pending.parameter.grad = pending.task_gradient
            self._after_step(pending)
        self._pending = []
        if self._handed is not None:
            self._handed.ended = True
        owned = self._owned(optimizer)
        for name in owned:
            self.observed.gradient.pop(name, None)
            self.observed.independent.pop(name, None)
        if self.rank_gradients is not None:
            self.rank_gradients.clear(trained_by(optimizer))

    def _after_step(self, pending: Pending) -> None:
        """Give Δ to the measures that wait for it."""
        gradient, independent = pending.gradient, pending.independent
        if gradient is None and independent is None and pending.handed is None:
            return  # no optimiser moves a parameter without a gradient
        measures = [(key, measure) for key, measure in self.path_measures.items() if measure.needs_step]
        kept = [self.memory.ledgers[key].running_for(pending.name, pending.parameter) for key, _ in measures]
        states = [at_hand(state, pending.parameter) for state in kept]
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
                measure.update_(state, g.to(state.dtype), g_ind, step, samples)
        for used, state in zip(states, kept, strict=True):
            put_back(used, state)

    def _seen(
        self, name: str, parameter: nn.Parameter, factor: float, *, copy: bool
    ) -> tuple[Tensor | None, Tensor | None]:
        """Return the gradient that measures see and the independent one."""
        independent = self.observed.independent.get(name)
        if name in self.observed.gradient:
            return self.observed.gradient[name], independent
        gradient = parameter.grad
        if gradient is None:
            return None, independent
        if factor != 1.0:
            gradient = gradient.to(running_dtype(parameter)) / factor
        elif copy:
            gradient = gradient.clone()
        return gradient, independent

    def _moves(self, key: str, name: str, gradient: Tensor | None, independent: Tensor | None) -> bool:
        """Whether a step changes a measure's state: a gradient of 0 still ages an average that has begun."""
        return gradient is not None or independent is not None or name in self.memory.ledgers[key].running

    def _owned(self, optimizer: Optimizer) -> dict[str, nn.Parameter]:
        """Return the protected parameters that this optimiser trains."""
        trained = ids(trained_by(optimizer))
        return {name: p for name, p in self.memory.parameters.items() if id(p) in trained and p.requires_grad}

    def _check_measures(self, measures: dict[str, PathMeasure], owned: dict[str, nn.Parameter]) -> None:
        """Refuse a step for which some measure lacks what it needs."""
        ranks = self.rank_gradients if not self.observed.independent else None
        for key, measure in measures.items():
            if ranks is not None and ranks.serves(measure):
                ranks.check_step(measure, owned, replaced=bool(self.observed.gradient))
                continue
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
        spoilt = [name for name, pair in seen.items() if not all(_looks_finite(gradient) for gradient in pair)]
        for name in self.memory.found_by_any_rank(spoilt):
            for pending in self._pending:
                pending.parameter.grad = pending.task_gradient
            self._pending = []
            step = self.memory.steps.get(name, 0) + 1
            raise NotFiniteError(
                f"The gradient of {name!r} holds a NaN or an infinity at step {step} of this task. The step was not "
                "taken and nothing was recorded. Look at this batch and its loss; zero the gradients to go on without "
                "it."
            )


def _looks_finite(gradient: Tensor | None) -> bool:
    """Whether a gradient holds numbers alone, as far as can be seen without waiting for an accelerator."""
    if gradient is None or gradient.device.type != "cpu":
        return True
    own = local(gradient)
    # The sum is not finite if any element is not; the reverse is rare, and then looked into.
    return bool(own.sum().isfinite()) or bool(own.isfinite().all())


def _buffer(buffers: dict[str, Tensor], name: str, like: Tensor) -> Tensor:
    """Return a buffer for a parameter, made anew when the parameter has changed."""
    kept = buffers.get(name)
    if kept is None or kept.shape != like.shape or kept.dtype != like.dtype or kept.device != like.device:
        kept = buffers[name] = torch.empty_like(like, requires_grad=False)
    return kept
