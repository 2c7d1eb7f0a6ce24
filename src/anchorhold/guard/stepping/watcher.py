"""The hooks of an optimizer's step: which steps are measured and held, and what is refused before one is taken.

What is done around a step stands in ``update.py``.
"""

from collections.abc import Mapping, Sequence
from functools import partial
from itertools import repeat
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer
from torch.utils.hooks import RemovableHandle

from anchorhold.errors import OrderError
from anchorhold.guard.core import Core
from anchorhold.guard.monitor import Monitor, Step, overriding
from anchorhold.guard.retention.following import Following
from anchorhold.guard.stepping.bundles import Bundle
from anchorhold.guard.stepping.layout import Layout, Layouts
from anchorhold.guard.stepping.observed import Observed
from anchorhold.guard.stepping.optimizers.accepted import (
    check_optimizer,
    is_within_its_own_step,
    read_scaling,
    trained_by,
)
from anchorhold.guard.stepping.optimizers.closures import Beginning, Beginnings, closure_in, guarded, with_closure
from anchorhold.guard.stepping.optimizers.handed_gradients import HandedGradients, Lent, lent_by
from anchorhold.guard.stepping.pulls import HeldBack
from anchorhold.guard.stepping.training_calls import TrainingCalls
from anchorhold.guard.stepping.update import PendingStep, Update
from anchorhold.guard.weights_mark import warn_of_other_weights


class StepWatcher:
    """Hook the steps of optimizers.

    Args:
        core: what the guard is made of.
        monitors: what watches the steps.
    """

    def __init__(self, core: Core, monitors: Sequence[Monitor]) -> None:
        self.core = core
        self.monitors = monitors
        self.layouts = Layouts(core)
        self.beginnings = Beginnings()
        self.calls = TrainingCalls()
        self.update = Update(core, monitors, self.layouts, self.calls)
        self.measures = self.update.measures
        self.following = Following(core, self.calls)
        self._enter_step = overriding(monitors, "enter_step")
        self._before_step = overriding(monitors, "before_step")
        self._leave_step = overriding(monitors, "leave_step")
        self._forget_step()

    def _forget_step(self) -> None:
        self._bundles: list[Bundle] = []
        """Those of the step that has begun, and not ended yet."""
        self._lent: list[Lent] = []
        self._handed: HandedGradients | None = None
        """The gradients of the last step that has begun."""

    @property
    def holds_anything(self) -> bool:
        """Return whether there is anything that could pull."""
        return bool(self.core.state.is_anchored or self.core.options.holds)

    def hook(self, optimizer: Optimizer, *, hold: bool) -> list[RemovableHandle]:
        """Measure an optimizer's steps from now on, and hold them back if ``hold``."""
        core = self.core
        if any(each.runs_model for each in core.options.holds) or core.state.tolerance or core.state.kept:
            self.calls.watch(core.runtime.model)
        # A compiled step calls the hooks as they are: what they do differs from parameter to parameter, so tracing them
        # would compile each anew.
        return [
            optimizer.register_step_pre_hook(torch.compiler.disable(partial(self._pre_hook, hold))),
            optimizer.register_step_post_hook(torch.compiler.disable(partial(self._post_hook, hold))),
        ]

    def release(self) -> None:
        """Free what was given for a step to come, and buffers, which are as large as two copies of the model."""
        self.measures.observed = Observed()
        self.layouts.forget()
        for monitor in self.monitors:
            monitor.release()
        self.calls.release()
        self._forget_step()

    def __getstate__(self) -> dict[str, Any]:
        """Leave out what belongs to a step or to optimizers: a copy watches none yet."""
        return {"core": self.core, "monitors": self.monitors}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__init__(**state)  # type: ignore[misc]

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
        for monitor in self._enter_step:
            monitor.enter_step()
        closure = closure_in(args, kwargs)
        if closure is not None:  # the gradients are not there yet: the closure begins the step when it has made them
            return with_closure(args, kwargs, guarded(closure, self, optimizer, hold=hold))
        try:
            self.begin(optimizer, hold=hold)
        except BaseException:
            self.abandon_step()
            raise
        return None

    @torch.no_grad()
    def begin(
        self, optimizer: Optimizer, *, hold: bool, closure: bool = False, beginning: Beginning | None = None
    ) -> None:
        """Do what comes before a step, or raise before anything has changed.

        Raise :class:`OrderError` if the step has ended already: it is not to be taken twice.

        Args:
            optimizer: that takes it.
            hold: whether it is to be held back.
            closure: whether a closure makes the gradients, to which it then adds the holds' itself.
            beginning: weights and gradients where the step began, if the optimizer has moved on from there.
        """
        layout = self.layouts.current(optimizer)
        if self._handed is not None:
            owned = self.layouts.owned(optimizer) if layout is None else layout.owned
            if self._handed.is_tried_again(optimizer, owned):
                return  # this very step has begun before, and raised: it is measured and held already
            if (name := self._handed.still_changed(owned)) is not None:
                raise OrderError(
                    f"The gradient of {name!r} is still that of the last step, with the penalty's in it: "
                    "optimizer.step() was called again without a new backward pass, or by another optimizer that "
                    "trains the same parameter. Call optimizer.zero_grad() and backward() before every step."
                )
        if self._bundles:  # a step that never ended; its buffers may still be some parameter's gradient
            self.layouts.forget()
        self._forget_step()
        scaling = read_scaling(optimizer)
        if scaling.skipped:
            return  # a GradScaler has found an infinity, and the optimizer leaves this step out
        layout = self._laid_out(optimizer, layout, hold=hold)
        seen = Step(optimizer, layout.owned, self._taken(layout.owned), closure=closure)
        self._check(seen, hold=hold)
        observed = self.measures.observed
        if beginning is not None and beginning.has_gradients and not observed.gradient:
            observed.gradient = {name: beginning.gradients.get(name) for name in layout.owned}
        step = PendingStep(seen, layout, hold, scaling.factor, beginning)
        try:
            self.update.before(step)
        finally:
            # Also if it raised: by what was handed a step that is tried again is known.
            self._bundles, self._handed = step.bundles, step.handed
        if step.handed is not None and self.measures.waiting:
            self._lent = lent_by(step.bundles)

    def _check(self, step: Step, *, hold: bool) -> None:
        """Refuse a step that cannot be measured or held, and let monitors look at one that is held."""
        self.measures.check_step(step.parameters)
        if not hold:
            return
        core = self.core
        self.update.implicit.check(step.optimizer, step.parameters)
        # A hold that acts every few steps spreads nothing in between.
        if not core.state.pulled_after or not core.task.steps or self.update.implicit.is_next(step.parameters):
            self.update.finite.check_weights_of_blocks(step.parameters)
        if core.state.tolerance is not None:
            self.following.before_step(step.optimizer)
        if core.state.frozen_norms:
            core.runtime.frozen_statistics.restore(core.norms)
        for monitor in self._before_step:
            monitor.before_step(step)

    def before_step(self, owned: Mapping[str, nn.Parameter]) -> None:
        """Let holds look at the weights that a step with a closure is taken from."""
        for each in self.core.options.holds:
            each.before_step(self.core.held(owned))

    def add_holds(self, optimizer: Optimizer, owned: Mapping[str, nn.Parameter]) -> HeldBack:
        """Add the gradients of all holds in place, for a closure, and return what they come to."""
        layout = self.layouts.current(optimizer)
        moved = self.layouts.moved(optimizer) if layout is None else layout.moved
        taken = self._taken(owned) - bool(self._bundles)  # a step that has begun is counted already
        return self.update.in_closure(Step(optimizer, owned, taken, closure=True), moved, self._bundles)

    def _taken(self, owned: Mapping[str, nn.Parameter]) -> int:
        """Return how many steps of the task these parameters have taken."""
        return max(map(self.core.task.steps.get, owned, repeat(0)), default=0)

    def _laid_out(self, optimizer: Optimizer, layout: Layout | None, *, hold: bool) -> Layout:
        """Return the given layout if it still fits, or a new one, with a look at what is not held in it."""
        core, first = self.core, not self.core.task.steps
        if first:  # of the task: look at the model again, and let holds look at its weights
            self.layouts.begin_task()
            for monitor in self.monitors if hold else ():
                monitor.begin_task()
            self.following.begin_task(optimizer)
            for each in core.options.holds:
                each.begin_task(core.held(core.runtime.parameters))
        elif layout is not None and self.layouts.get(optimizer) is layout:
            return layout
        if core.task.mark:
            warn_of_other_weights(core, optimizer)
        self.layouts.take_in_new(optimizer)
        check_optimizer(optimizer, core.runtime.parameters, core.frozen)  # it may have others since attach()
        layout = self.layouts.make(optimizer)
        for monitor in self.monitors if hold else ():
            monitor.before_parameters(layout.owned)
        return layout

    # After a step

    @torch.no_grad()
    def _post_hook(self, hold: bool, optimizer: Optimizer, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        if is_within_its_own_step(optimizer):
            return
        self.core.space.stepped()
        if self._lent:
            self.update.overwriters.look(optimizer, self._lent)
        # Taken out first: should something raise below, the next step does not go on with these.
        bundles, self._bundles, self._lent = self._bundles, [], []
        # A held step moves also what has no gradient of the task's.
        is_blind = bool(self.measures.every and bundles) and not (hold and self.holds_anything)
        is_blind = is_blind and all(bundle.gradient is None and bundle.independent is None for bundle in bundles)
        for monitor in self._leave_step:
            monitor.leave_step(blind=is_blind)
        layout = self.layouts.get(optimizer)
        owned = self.layouts.owned(optimizer) if layout is None else layout.owned
        # The step is counted already.
        self.update.after(Step(optimizer, owned, self._taken(owned) - 1), bundles, hold=hold)
        if bundles and self.core.state.kept:
            self.following.after_step(optimizer, owned)
        if self._handed is not None:
            # From here on a step with the same gradients is one that is taken twice.
            self._handed.ended = True
        if closure_in(args, kwargs) is not None:
            self.beginnings.ended(optimizer, owned)
        observed = self.measures.observed
        if observed.gradient or observed.independent or observed.squares:
            observed.drop(list(owned))
        if self.measures.rank_gradients is not None:
            self.measures.rank_gradients.clear(trained_by(optimizer))
