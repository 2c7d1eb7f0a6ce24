"""Watching an optimiser's steps: what happens just before and just after each of them.

Before a step, the measures that need no Δ see g, the weights are remembered for those that do, and the hold's gradient
joins the task's. After it, the others see g and Δ. ``update.py`` does that, bundle by bundle; here stands when,
and what has to be so before it is done.
"""

from collections.abc import Mapping, Sequence
from functools import partial
from itertools import chain
from typing import Any, NoReturn

import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.utils.hooks import RemovableHandle

from anchorhold.errors import NotFiniteError, OrderError
from anchorhold.guard.batch_norm.steady_maps import SteadyMaps
from anchorhold.guard.core import Core
from anchorhold.guard.monitor import Monitor, Step, is_capturing
from anchorhold.guard.retention.following import Following
from anchorhold.guard.stepping.bundles import Bundle, Single
from anchorhold.guard.stepping.implicit import ImplicitPull
from anchorhold.guard.stepping.layout import Layout, Layouts
from anchorhold.guard.stepping.observed import Observed
from anchorhold.guard.stepping.optimizers.accepted import (
    check_optimizer,
    give_each_its_own_gradient,
    is_within_its_own_step,
    read_scaling,
    trained_by,
)
from anchorhold.guard.stepping.optimizers.closures import Beginning, Beginnings, closure_in, guarded, with_closure
from anchorhold.guard.stepping.optimizers.handed_gradients import HandedGradients, Lent, Overwriters
from anchorhold.guard.stepping.pulls import HeldBack, Moving, Pull, add_all_in_place, add_pulls, pulls_of
from anchorhold.guard.stepping.training_calls import TrainingCalls
from anchorhold.guard.stepping.update import PathMeasures
from anchorhold.holds.base import is_looked_at, refuse_spoilt_weights
from anchorhold.tensors.finite import is_finite
from anchorhold.tensors.sharding import is_sharded, local


class StepWatcher:
    """Observes, and holds back, the steps of optimisers."""

    def __init__(self, core: Core, monitors: Sequence[Monitor]) -> None:
        self.core = core
        self.monitors = monitors
        self.measures = PathMeasures(core)
        self.layouts = Layouts(core)
        self.beginnings = Beginnings()
        self.maps = SteadyMaps()
        self.calls = TrainingCalls()
        self.implicit = ImplicitPull(core)
        self.following = Following(core, self.calls)
        self._overwriters = Overwriters()
        self._forget_step()

    def _forget_step(self) -> None:
        self._stepping: list[Bundle] = []
        self._lent: list[Lent] = []
        self._handed: HandedGradients | None = None

    @property
    def holds_anything(self) -> bool:
        """Whether there is anything that could pull."""
        return bool(self.core.state.is_anchored or self.core.options.holds)

    def hook(self, optimizer: Optimizer, *, hold: bool) -> list[RemovableHandle]:
        """Watch an optimiser, and hold its steps back if ``hold``."""
        if (
            any(each.runs_model for each in self.core.options.holds)
            or self.core.state.tolerance
            or self.core.state.kept
        ):
            self.calls.watch(self.core.runtime.model)
        # A compiled step calls the hooks as they are: what they do differs from parameter to parameter, so tracing them
        # would compile each anew.
        return [
            optimizer.register_step_pre_hook(torch.compiler.disable(partial(self._pre_hook, hold))),
            optimizer.register_step_post_hook(torch.compiler.disable(partial(self._post_hook, hold))),
        ]

    def release(self) -> None:
        """Let go of what was given for a step to come, and of what is reused, as large as two copies of the model."""
        self.measures.observed = Observed()
        self.layouts.forget()
        for monitor in self.monitors:
            monitor.release()
        self.calls.release()
        self._forget_step()

    def __getstate__(self) -> dict[str, Any]:
        """Leave out what belongs to a step or to optimisers: a copy watches none yet."""
        return {"core": self.core, "monitors": self.monitors}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__init__(**state)  # type: ignore[misc]

    def add_holds(self, optimizer: Optimizer, owned: Mapping[str, nn.Parameter]) -> HeldBack:
        """Add the gradients of all holds in place, for a closure, and return what they come to."""
        layout = self.layouts.current(optimizer)
        moved = self.layouts.moved(optimizer) if layout is None else layout.moved
        moving = Moving(owned, moved, self.calls, counted=bool(self._stepping))
        step = Step(optimizer, owned, self._taken(owned) - bool(self._stepping), closure=True)  # it is counted already
        for monitor in self.monitors:
            monitor.before_pull(step)
        found = add_all_in_place(self.core, self._stepping, moving)
        for monitor in self.monitors:
            monitor.after_pull(step)
        return found

    def _taken(self, owned: Mapping[str, nn.Parameter]) -> int:
        """Return how many steps of the task these parameters have taken."""
        return max((self.core.task.steps.get(name, 0) for name in owned), default=0)

    def abandon_step(self) -> None:
        """Tell monitors that the optimizer's step is not taken."""
        for monitor in self.monitors:
            monitor.abandon_step()

    # Before a step

    def _pre_hook(
        self, hold: bool, optimizer: Optimizer, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]] | None:
        if is_within_its_own_step(optimizer):
            return None
        for monitor in self.monitors:
            monitor.enter_step()
        closure = closure_in(args, kwargs)
        if closure is None:
            try:
                self.begin(optimizer, hold=hold)
            except BaseException:
                self.abandon_step()
                raise
            return None
        return with_closure(args, kwargs, guarded(closure, self, optimizer, hold=hold))

    @torch.no_grad()
    def begin(
        self, optimizer: Optimizer, *, hold: bool, closure: bool = False, beginning: Beginning | None = None
    ) -> None:
        """Do what comes before a step, or raise before anything has changed.

        Args:
            optimizer: that takes it.
            hold: whether it is to be held back.
            closure: whether a closure makes the gradients, to which it then adds the holds' itself.
            beginning: weights and gradients where the step began, if the optimiser has moved on from there.
        """
        layout = self.layouts.current(optimizer)
        if self._is_tried_again(optimizer, layout):
            return  # it is measured and held already
        self._let_go_of_last_step()
        scaling = read_scaling(optimizer)
        if scaling.skipped:
            return
        layout = self._laid_out(optimizer, layout, hold=hold)
        core, owned, measures = self.core, layout.owned, self.measures
        step = Step(optimizer, owned, self._taken(owned), closure=closure)
        self._check(step, hold=hold)
        if beginning is not None and beginning.has_gradients and not measures.observed.gradient:
            measures.observed.gradient = {name: beginning.gradients.get(name) for name in owned}
        pulled_after = hold
        hold = hold and not closure
        joins_gradient = hold and not core.state.pulled_after
        if hold:
            self.before_step(owned)
        for monitor in self.monitors if joins_gradient else ():
            monitor.before_pull(step)
        self._carry_over(hold=hold)
        strength = 2 * core.state.strength * scaling.factor if hold and not core.state.implicit.value else 0.0
        pulls = self._pulls(Moving(owned, layout.moved, self.calls, scaling.factor)) if hold else []
        in_place = self._written_in_place(layout, pulls, strength)
        give_each_its_own_gradient(in_place)
        bundles, sums = self._look(optimizer, layout, scaling.factor, held_apart=bool(strength), closure=closure)
        if measures.observed.gradient:  # measures see others, and the step is taken with these
            self._refuse_unless_handed_are_finite(bundles)
        if not self._walk_looks:
            self._refuse_unless_finite(bundles, sums)
        self._walk(bundles, strength, beginning, pulled_after=pulled_after)
        self._add(pulls, optimizer, layout, scaling.factor, in_place)
        for monitor in self.monitors if joins_gradient else ():
            monitor.after_pull(step)
        self._count_step(bundles)
        if not closure and (strength or measures.every or core.options.holds):
            self._lend(bundles)
            self._handed = HandedGradients(optimizer, owned, {n: p for n, p in in_place.items() if n in owned})

    def _check(self, step: Step, *, hold: bool) -> None:
        """Refuse a step that cannot be measured or held, and let monitors look at it."""
        self.measures.check_step(step.parameters)
        self.implicit.check(step.optimizer, step.parameters, hold=hold)
        if hold:
            self._refuse_weights_that_would_spread(step.parameters)
            self.following.before_step(step.optimizer)
            self.core.runtime.frozen_statistics.restore(self.core.norms)
            for monitor in self.monitors:
                monitor.before_step(step)

    def _walk(self, bundles: list[Bundle], strength: float, beginning: Beginning | None, *, pulled_after: bool) -> None:
        """Let measures see the gradients of all bundles, to which the quadratic hold's are added."""
        sums: list[Tensor] = []
        for bundle in bundles:
            self.measures.before_step(bundle, strength, sums)
            if beginning is not None and self.measures.waiting:
                bundle.moved_from(beginning.weights)
        self.implicit.begin(bundles, hold=pulled_after)
        self._stepping = bundles
        if self.measures.waiting:
            self._refuse_unless_finite(bundles, sums)

    def before_step(self, owned: Mapping[str, nn.Parameter]) -> None:
        """Let holds look at the weights that a step is taken from."""
        for each in self.core.options.holds:
            each.before_step(self.core.held(owned))

    def _pulls(self, moving: Moving) -> list[Pull]:
        """Return what holds add that are not walked through, or say so if it is the weights that are no numbers."""
        try:
            return pulls_of(self.core, moving)
        except NotFiniteError:
            self._refuse_lost_weights(max(self.core.task.steps.values(), default=0) + 1)
            raise

    def _add(
        self,
        pulls: Sequence[Pull],
        optimizer: Optimizer,
        layout: Layout,
        factor: float,
        written: Mapping[str, nn.Parameter],
    ) -> None:
        """Add pulls; if one cannot be made, for memory say, no step may be taken with the gradients that have theirs.

        Where they were written to copies, the task's own are put back.
        """
        try:
            add_pulls(self._stepping, layout.moved, pulls, factor, in_place=not self.measures.waiting)
        except BaseException:
            for bundle in self._stepping:
                bundle.put_back()
            self._stepping = []
            owned = layout.owned
            self._handed = HandedGradients(optimizer, owned, {n: p for n, p in written.items() if n in owned})
            self._handed.ended = True
            raise

    def _laid_out(self, optimizer: Optimizer, layout: Layout | None, *, hold: bool) -> Layout:
        """Return the layout that is given if it still fits, or a new one, with a look at what is not held in it."""
        first = not self.core.task.steps
        if first:
            self._begin_task(optimizer, hold=hold)
        if not first and layout is not None and self.layouts.get(optimizer) is layout:
            return layout
        self.layouts.take_in_new(optimizer)
        check_optimizer(optimizer, self.core.runtime.parameters, self.core.frozen)  # it may have others since attach()
        layout = self.layouts.make(optimizer)
        for monitor in self.monitors if hold else ():
            monitor.before_parameters(layout.owned)
        return layout

    def _carry_over(self, *, hold: bool) -> None:
        """Keep folded maps where they are while statistics move, but not between the evaluations of a closure."""
        core = self.core
        if core.folding.pairs:
            (self.maps.carry_over if hold and core.state.strength else self.maps.note)(core.folding, core.runtime.ranks)

    @property
    def _walk_looks(self) -> bool:
        """Whether the walk itself looks for NaN: all measures wait for the step, so that there is nothing to spoil."""
        return bool(self.measures.waiting) and not self.measures.at_once

    def _written_in_place(self, layout: Layout, pulls: Sequence[Pull], strength: float) -> dict[str, nn.Parameter]:
        """Return the parameters whose own gradients are written to: nobody needs the task's after the step."""
        pulled = {name for pull in pulls for name in pull.names}
        if self.measures.waiting:
            return {name: layout.moved[name] for name in pulled - layout.owned.keys()}
        held = [bundle for bundle in layout.bundles if bundle.held and strength]
        found = {n: p for bundle in held for n, p in zip(bundle.names, bundle.parameters, strict=True)}
        return found | {name: layout.moved[name] for name in pulled}

    def _begin_task(self, optimizer: Optimizer, *, hold: bool) -> None:
        """Look at the model again, and let holds look at its weights, before a task's first step."""
        self.layouts.begin_task()
        for monitor in self.monitors if hold else ():
            monitor.begin_task()
        self.following.begin_task(optimizer)
        for each in self.core.options.holds:
            each.begin_task(self.core.held(self.core.runtime.parameters))

    def _look(
        self, optimizer: Optimizer, layout: Layout, factor: float, *, held_apart: bool, closure: bool
    ) -> tuple[list[Bundle], list[Tensor]]:
        """Return the bundles, with the gradients that measures see, and their sums where those are looked at now.

        Parameters that lack a gradient go by themselves from now on.
        """
        measures, observed = self.measures, self.measures.observed
        at_risk = self._overwriters.may_include(optimizer)
        lacking: set[str] = set()
        sums: list[Tensor] = []
        for bundle in layout.bundles:
            # What is held goes to the optimiser as another tensor; the rest it might overwrite.
            copy = bool(measures.waiting) and (closure or (at_risk and not (held_apart and bundle.held)))
            if not bundle.look(observed, factor, copy=copy):
                lacking |= set(bundle.lacking(observed))
            elif not self._walk_looks and bundle.like.device.type == "cpu":  # others would have to be waited for
                sums += [local(g).sum() for g in (bundle.gradient, bundle.independent) if g is not None]
        if not lacking:
            return layout.bundles, sums
        self.layouts.send_alone(lacking)
        again = self.layouts.make(optimizer)
        return self._look(optimizer, again, factor, held_apart=held_apart, closure=closure)

    # After a step

    @torch.no_grad()
    def _post_hook(self, hold: bool, optimizer: Optimizer, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Do what comes after a step."""
        if is_within_its_own_step(optimizer):
            return
        self.maps.stepped()
        self._overwriters.look(optimizer, self._lent)
        stepping, self._stepping, self._lent = self._stepping, [], []
        seen = any(bundle.gradient is not None or bundle.independent is not None for bundle in stepping)
        pulled = hold and self.holds_anything  # which moves what has no gradient of the task's
        for monitor in self.monitors:
            monitor.leave_step(blind=bool(self.measures.every and stepping) and not seen and not pulled)
        for bundle in stepping:
            self._see_what_moved(bundle)
        layout = self.layouts.get(optimizer)
        owned = self.layouts.owned(optimizer) if layout is None else layout.owned
        if hold and stepping:
            self._hold_after(optimizer, stepping, owned)
        if stepping:
            self.following.after_step(optimizer, owned)
        if self._handed is not None:
            self._handed.ended = True
        if closure_in(args, kwargs) is not None:
            self.beginnings.ended(optimizer, owned)
        observed, ranks = self.measures.observed, self.measures.rank_gradients
        if observed.gradient or observed.independent or observed.squares:
            observed.drop(list(owned))
        if ranks is not None:
            ranks.clear(trained_by(optimizer))

    def _see_what_moved(self, bundle: Bundle) -> None:
        """Let measures see Δ of a bundle, which gets its own gradients back."""
        moved = bundle.gradient is not None or bundle.independent is not None
        moved = moved or any(grad is not None for grad in (*bundle.own, *bundle.handed))
        bundle.put_back()
        if self.measures.waiting and moved:  # no optimiser moves a parameter without a gradient
            self.measures.after_step(bundle)
        bundle.let_go()

    def _hold_after(self, optimizer: Optimizer, stepping: list[Bundle], owned: Mapping[str, nn.Parameter]) -> None:
        """Let holds act that act after the step: the implicit pull, and those that move weights."""
        core = self.core
        if core.state.pulled_after:
            step = Step(optimizer, owned, self._taken(owned) - 1)  # it is counted already
            for monitor in self.monitors:
                monitor.before_pull(step)
            self.implicit.pull(optimizer, stepping, owned)
            for monitor in self.monitors:
                monitor.after_pull(step)
        for each in core.options.holds:
            each.after_step(core.held(owned))
            refuse_spoilt_weights(each, owned)
        for monitor in self.monitors:
            monitor.after_step()

    # Helpers

    def _count_step(self, bundles: Sequence[Bundle]) -> None:
        core = self.core
        for bundle in bundles:
            if self.measures.waiting and bundle.names[0] not in core.task.start:
                bundle.keep_start(bundle.buffer("before"))
            for name in bundle.names:
                core.task.steps[name] = core.task.steps.get(name, 0) + 1

    def _let_go_of_last_step(self) -> None:
        self._handed = None
        if self._stepping:  # it never ended; its buffers may still be some parameter's gradient
            self.layouts.forget()
            self._stepping, self._lent = [], []

    def _is_tried_again(self, optimizer: Optimizer, layout: Layout | None) -> bool:
        """Whether this very step has begun before, and raised; one that has ended is not to be taken twice."""
        if self._handed is None:
            return False
        owned = self.layouts.owned(optimizer) if layout is None else layout.owned
        if self._handed.is_tried_again(optimizer, owned):
            return True
        if (name := self._handed.still_changed(owned)) is not None:
            raise OrderError(
                f"The gradient of {name!r} is still that of the last step, with the penalty's in it: optimizer.step() "
                "was called again without a new backward pass, or by another optimiser that trains the same parameter. "
                "Call optimizer.zero_grad() and backward() before every step."
            )
        return False

    def _lend(self, bundles: Sequence[Bundle]) -> None:
        """Note which gradients the optimiser is about to get as they are, if any are measured after the step."""
        for bundle in bundles if self.measures.waiting else ():
            given = bundle.own[0]
            if isinstance(bundle, Single) and given is not None and bundle.like.grad is given:
                self._lent.append(Lent(given, given._version, measured=bundle.gradient is given))

    def _refuse_unless_finite(self, bundles: Sequence[Bundle], sums: Sequence[Tensor]) -> None:
        """Refuse a NaN or an infinity before it spoils anything; on a CPU, where looking costs little.

        An accelerator would have to be waited for at every step: there, the end of the task finds it.

        Args:
            bundles: with their gradients.
            sums: those of the gradients that can be looked at now; bundles are only searched if one is no number.
        """
        if not self.core.runtime.found_by_any_rank([] if _finite(sums) else [True]):
            return
        spoilt = [
            name
            for bundle in bundles
            if not all(map(_looks_finite, (bundle.gradient, bundle.independent)))
            for name in bundle.names
            if len(bundle.names) == 1 or not bundle.is_finite(name)
        ]
        spoilt.sort(key=list(self.core.runtime.parameters).index)
        for name in self.core.runtime.found_by_any_rank(spoilt):
            for bundle in bundles:
                bundle.put_back()
            self._stepping = []
            self._refuse_spoilt(name)

    def _refuse_unless_handed_are_finite(self, bundles: Sequence[Bundle]) -> None:
        own = [(name, grad) for bundle in bundles for name, grad in zip(bundle.names, bundle.own, strict=True)]
        spoilt = [name for name, grad in own if grad is not None and not grad.is_sparse and not _looks_finite(grad)]
        for name in self.core.runtime.found_by_any_rank(spoilt):
            self._refuse_spoilt(name)

    def _refuse_spoilt(self, name: str) -> NoReturn:
        """Refuse a step whose gradient is no number, with whatever may be the reason."""
        step = self.core.task.steps.get(name, 0) + 1
        self._refuse_lost_weights(step)
        reasons = (monitor.explain_nonfinite() for monitor in self.monitors)
        raise NotFiniteError(_SPOILT.format(name=name, step=step) + next(filter(None, reasons), ""))

    def _refuse_lost_weights(self, step: int) -> None:
        """Say so if the weights themselves are no numbers any more, which no batch is to blame for."""
        for name, parameter in self.core.runtime.parameters.items():
            if not _looks_finite(parameter.detach()):
                raise NotFiniteError(self._lost(name, step))

    def _refuse_weights_that_would_spread(self, owned: Mapping[str, nn.Parameter]) -> None:
        """Refuse weights that are no numbers where a form would spread them over a block, in a pull nobody looks at.

        That is one after the step, and on an accelerator also one before it. Only a task's first step waits for an
        accelerator, or asks other ranks about their parts.
        """
        core = self.core
        if core.state.driving.form.elementwise or not core.state.strength or not core.state.is_anchored:
            return
        first = not core.task.steps and not is_capturing()
        always = {n for n, p in owned.items() if is_looked_at(p) and not is_sharded(p)}
        asked = {n: p for n, p in owned.items() if (core.state.pulled_after if n in always else first)}
        lost = [name for name, parameter in asked.items() if not is_finite(parameter)]
        everyones = core.runtime.ranks.each(lambda: lost) if any(map(is_sharded, asked.values())) else [lost]
        for name in chain.from_iterable(everyones):
            raise NotFiniteError(self._lost(name, core.task.steps.get(name, 0) + 1))

    def _lost(self, name: str, step: int) -> str:
        return (
            f"The weights {name!r} themselves are not finite any more, at step {step} of this task; the step was not "
            f"taken. Training has diverged, by a learning rate or a strength (here {self.core.state.said_strength}) "
            "that is too large: restore an earlier checkpoint. No batch is at fault."
        )


_SPOILT = (
    "The gradient of {name!r} holds a NaN or an infinity at step {step} of this task. The step was not taken and "
    "nothing was recorded. Look at this batch and its loss; zero the gradients to go on without it."
)


def _finite(sums: Sequence[Tensor]) -> bool:
    """Whether all of some sums are numbers."""
    return not sums or bool(torch.stack([total.double() for total in sums]).isfinite().all())


def _looks_finite(gradient: Tensor | None) -> bool:
    """Whether a gradient holds numbers alone, as far as can be seen without waiting for an accelerator."""
    return gradient is None or gradient.device.type != "cpu" or is_finite(gradient)
