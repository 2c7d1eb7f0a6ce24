"""One step of an optimizer, from top to bottom: what a guard does just before it, and just after.

With g the task's gradient, g′ an independent one, θ* the anchor, Ω the importance and h an optimizer's effective rate::

    before   s ← f(s, g, g′)            the measures that need no Δ
             g ← g + 2cΩ(θ − θ*)        the quadratic hold, and what further holds add
    step     θ ← θ + Δ                  the optimizer's own
    after    s ← f(s, g, g′, Δ)         the other measures
             D ← D/(1 + 2chΩ)           the quadratic hold, where it is implicit: D = θ − θ*; or every few steps
             θ ← P(θ)                   further holds that move weights

Which steps these are, and what is refused, stands in ``watcher.py``; what measures see in ``path_measures.py``; the
quadratic hold in other forms than the diagonal, and further holds, in ``pulls.py`` and ``implicit.py``.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from anchorhold.errors import NotFiniteError
from anchorhold.guard.core import Core
from anchorhold.guard.monitor import Monitor, Step, overriding
from anchorhold.guard.stepping.bundles import Bundle, Single
from anchorhold.guard.stepping.finite_checks import FiniteChecks
from anchorhold.guard.stepping.implicit import ImplicitPull
from anchorhold.guard.stepping.layout import Layout, Layouts
from anchorhold.guard.stepping.optimizers.accepted import give_each_its_own_gradient
from anchorhold.guard.stepping.optimizers.closures import Beginning
from anchorhold.guard.stepping.optimizers.handed_gradients import HandedGradients, Overwriters
from anchorhold.guard.stepping.path_measures import PathMeasures, pieces_of, write_back
from anchorhold.guard.stepping.pulls import HeldBack, Moving, Pull, add_all_in_place, add_pulls, pulls_of
from anchorhold.guard.stepping.training_calls import TrainingCalls
from anchorhold.holds.base import refuse_spoilt_weights
from anchorhold.holds.of_weights.quadratic import add_penalty_gradient
from anchorhold.tensors.sharding import local


@dataclass
class PendingStep:
    """A step that an optimizer is about to take."""

    seen: Step
    """The step as monitors see it."""
    layout: Layout
    """The parameters that it moves, in bundles."""
    hold: bool
    """Whether it is held back."""
    loss_scale: float = 1.0
    """The factor of a ``GradScaler`` that is still in the gradients."""
    beginning: Beginning | None = None
    """Weights and gradients where the step began, if the optimizer has moved on from there, as SAM does."""
    bundles: list[Bundle] = field(default_factory=list)
    """The bundles with their gradients, once measures have seen those."""
    handed: HandedGradients | None = None
    """The gradients that the optimizer was handed."""

    def remember_gradients(self, written: Mapping[str, nn.Parameter]) -> HandedGradients:
        """Remember which of the optimizer's gradients were written to, to tell a step that is tried again."""
        owned = self.layout.owned
        changed = {name: p for name, p in written.items() if name in owned}
        self.handed = HandedGradients(self.seen.optimizer, owned, changed)
        return self.handed


class Update:
    """Apply measures and holds around steps.

    Args:
        core: what the guard is made of.
        monitors: what watches the steps.
        layouts: the bundles of each optimizer.
        calls: how the model was called last, for holds that run it.
    """

    def __init__(self, core: Core, monitors: Sequence[Monitor], layouts: Layouts, calls: TrainingCalls) -> None:
        self.core = core
        self.layouts = layouts
        self.calls = calls
        self.measures = PathMeasures(core)
        self.implicit = ImplicitPull(core)
        self.finite = FiniteChecks(core, monitors)
        self.overwriters = Overwriters()
        self._before_pull = overriding(monitors, "before_pull")
        self._after_pull = overriding(monitors, "after_pull")
        self._after_step = overriding(monitors, "after_step")

    def before(self, step: PendingStep) -> None:
        """Let measures see g, and add the holds' gradients to it; or raise before anything has changed."""
        core, measures, seen = self.core, self.measures, step.seen
        adds = step.hold and not seen.closure  # a closure adds the holds to each loss that it returns
        pulls_after = step.hold and core.state.pulled_after
        joins_gradient = adds and not pulls_after
        # The loss scale is in g, and so has to be in what is added to it.
        factor = 2 * core.state.strength * step.loss_scale if adds and not core.state.implicit.value else 0.0

        for hold in core.options.holds if adds else ():
            hold.before_step(core.held(seen.parameters))
        for monitor in self._before_pull if joins_gradient else ():
            monitor.before_pull(seen)
        # Before the pulls, which are found from the coordinates: forward passes have moved statistics.
        core.space.follow(core.runtime.ranks.take_first, is_held=adds and bool(core.state.strength))
        pulls = self._pulls(step) if adds else []
        written = self._written_in_place(step.layout, pulls, is_held=bool(factor))
        # Before bundles look at .grad: they keep the very tensors that are written to later.
        if written:
            give_each_its_own_gradient(written)

        bundles = self._gradients(step, is_held=bool(factor))
        sums: list[Tensor] = []
        for bundle in bundles:
            self._before_bundle(bundle, factor, sums)
            if step.beginning is not None and measures.waiting:
                bundle.moved_from(step.beginning.weights)
        if pulls_after:
            self.implicit.begin(bundles)
        if measures.waiting:  # nothing is spoilt yet: their states change after the step
            self.finite.check_gradients(bundles, sums)
        step.bundles = bundles
        if pulls:
            self._add_pulls(step, pulls, written)
        for monitor in self._after_pull if joins_gradient else ():
            monitor.after_pull(seen)
        # Late: a step that was refused above is not counted.
        self._count(bundles)
        if not seen.closure and (factor or measures.every or core.options.holds):
            step.remember_gradients(written)

    def after(self, step: Step, bundles: Sequence[Bundle], *, hold: bool) -> None:
        """Let measures see Δ, and let holds act that act after the step."""
        core = self.core
        for bundle in bundles:
            # Before put_back(), which forgets what was handed.
            grads = (bundle.gradient, bundle.independent, *bundle.own, *bundle.handed)
            bundle.put_back()
            # No optimizer moves a parameter without a gradient.
            if self.measures.waiting and any(grad is not None for grad in grads):
                self._after_bundle(bundle)
            bundle.release()
        if not hold or not bundles:
            return
        # Only once measures have seen Δ, which is the optimizer's step without the pull.
        if core.state.pulled_after:
            self._pull_after(step, bundles)
        for each in core.options.holds:
            each.after_step(core.held(step.parameters))
            refuse_spoilt_weights(each, step.parameters)
        for monitor in self._after_step:
            monitor.after_step()

    def _pull_after(self, step: Step, bundles: Sequence[Bundle]) -> None:
        """Pull the weights that are due, with a look before and after that."""
        rates = self.implicit.due(step.optimizer, step.parameters)
        if not rates and self.core.task.waiting:
            return
        for monitor in self._before_pull:
            monitor.before_pull(step)
        self.implicit.pull(rates, bundles, step.parameters)
        for monitor in self._after_pull:
            monitor.after_pull(step)

    def in_closure(self, step: Step, moved: Mapping[str, nn.Parameter], bundles: Sequence[Bundle]) -> HeldBack:
        """Add the holds' gradients to those that a closure has made, and return the holds' value."""
        for monitor in self._before_pull:
            monitor.before_pull(step)
        moving = Moving(step.parameters, moved, self.calls, counted=bool(bundles))
        found = add_all_in_place(self.core, bundles, moving)
        for monitor in self._after_pull:
            monitor.after_pull(step)
        return found

    # Element by element

    def _before_bundle(self, bundle: Bundle, factor: float, sums: list[Tensor]) -> None:
        """Update the measures that need no Δ, keep θ for the others, and add the quadratic hold's gradient.

        Args:
            bundle: the parameters, with their gradients.
            factor: 2c, times the loss scale; 0 for no hold.
            sums: where to put the sums of gradients that only measures after the step will see, to look for NaN.
        """
        measures, g, g_ind = self.measures, bundle.gradient, bundle.independent
        keeps_weights, is_held = bool(measures.waiting), bool(factor) and bundle.held
        measured = [
            key
            for key in measures.at_once
            if g is not None or g_ind is not None or bundle.begun(key)  # 0 still ages an average that has begun
        ]
        tensors: dict[str, Tensor | None] = {}
        if keeps_weights or is_held:
            tensors["theta"] = bundle.weights("before" if keeps_weights else "weights")
        if is_held:
            tensors["omega"], tensors["anchor"] = bundle.anchored()
            tensors["task"] = bundle.task_gradient()
            tensors["out"] = bundle.hand(in_place=not keeps_weights)
        if keeps_weights and isinstance(bundle, Single):  # a row's copy of θ is kept already
            tensors["before"] = bundle.buffer("before")
        shown, states, kept = measures.shown(bundle, measured)
        tensors |= shown
        looks = measures.only_wait and bundle.like.device.type == "cpu"
        if looks:
            tensors |= {"g": g, "g_ind": g_ind}
        number = self.core.task.steps.get(bundle.names[0], 0)
        for piece, own in pieces_of(tensors, states):
            # First of all: where the hold is added in place, g is the memory that it is added to.
            for key in measured:
                measures.update(measures.at_once[key], own[key], piece, number)
            if "before" in piece:
                piece["before"].copy_(piece["theta"])
            if looks:
                # In the same pass over memory as the rest: a NaN shows in the sum.
                sums += [piece[name].sum() for name in ("g", "g_ind") if name in piece]
            if is_held:
                theta, omega, anchor = piece["theta"], piece["omega"], piece["anchor"]
                add_penalty_gradient(piece["task"], theta, omega, anchor, factor=factor, out=piece["out"])
        if is_held and not keeps_weights:
            bundle.deliver()
        write_back(states, kept)

    def _after_bundle(self, bundle: Bundle) -> None:
        """Update the measures that wait for Δ."""
        measures, waiting = self.measures, list(self.measures.waiting)
        shown, states, kept = measures.shown(bundle, waiting)
        tensors = {"theta": bundle.weights("weights"), "step": bundle.buffer("before")} | shown
        number = self.core.task.steps.get(bundle.names[0], 0) - 1  # the step itself is counted already
        for piece, own in pieces_of(tensors, states):
            # Δ takes the place of the weights before the step, which are not needed again.
            torch.sub(piece["theta"], piece["step"], out=piece["step"])
            for key in waiting:
                measures.update(measures.waiting[key], own[key], piece, number)
        write_back(states, kept)

    # Beside the mathematics

    def _gradients(self, step: PendingStep, *, is_held: bool) -> list[Bundle]:
        """Return the bundles with the gradients that measures see; raise if one of those is not finite.

        Parameters that lack a gradient lie in bundles of their own from now on.
        """
        measures, observed = self.measures, self.measures.observed
        may_overwrite = step.seen.optimizer not in self.overwriters.keeping
        while True:
            lacking: set[str] = set()
            for bundle in step.layout.bundles:
                # The optimizer gets what is held as another tensor; it might overwrite the rest before it is measured.
                copy = step.seen.closure or (may_overwrite and not (is_held and bundle.held))
                if not bundle.look(observed, step.loss_scale, copy=bool(measures.waiting) and copy):
                    lacking |= set(bundle.lacking(observed))
            if not lacking:
                break
            self.layouts.send_alone(lacking)
            step.layout = self.layouts.make(step.seen.optimizer)
        bundles = step.layout.bundles
        if observed.gradient:  # measures see those, and the step is taken with others
            self.finite.check_own_gradients(bundles)
        if not measures.only_wait:
            # Those on accelerators would have to be waited for.
            seen = [g for b in bundles if b.like.device.type == "cpu" for g in (b.gradient, b.independent)]
            own = [g if type(g) is Tensor else local(g) for g in seen if g is not None]
            self.finite.check_gradients(bundles, [g.sum() for g in own])
        return bundles

    def _count(self, bundles: Sequence[Bundle]) -> None:
        """Count the step, and keep θ(0) before a parameter's first one."""
        task = self.core.task
        for bundle in bundles:
            if self.measures.waiting and bundle.names[0] not in task.start:
                bundle.keep_start(bundle.buffer("before"))
            for name in bundle.names:
                task.steps[name] = task.steps.get(name, 0) + 1

    def _pulls(self, step: PendingStep) -> list[Pull]:
        """Return what holds add that are not element by element; raise if weights are to blame for a NaN in it."""
        try:
            return pulls_of(self.core, Moving(step.layout.owned, step.layout.moved, self.calls, step.loss_scale))
        except NotFiniteError as error:
            self.finite.check_weights(self.core.task.most_steps + 1)
            raise NotFiniteError(f"{error}{self.finite.explained()}") from None

    def _add_pulls(self, step: PendingStep, pulls: Sequence[Pull], written: Mapping[str, nn.Parameter]) -> None:
        """Add pulls to the gradients.

        If one cannot be made, for memory say, no step may be taken with the gradients that have others' already: those
        that were written to copies are put back, and the rest is refused at the next step.
        """
        try:
            add_pulls(step.bundles, step.layout.moved, pulls, step.loss_scale, in_place=not self.measures.waiting)
        except BaseException:
            for bundle in step.bundles:
                bundle.put_back()
            step.bundles = []
            step.remember_gradients(written).ended = True
            raise

    def _written_in_place(self, layout: Layout, pulls: Sequence[Pull], *, is_held: bool) -> dict[str, nn.Parameter]:
        """Return the parameters whose own gradients are written to: nobody needs the task's after the step."""
        pulled = {name for pull in pulls for name in pull.names} if pulls else set()
        if self.measures.waiting:
            return {name: layout.moved[name] for name in pulled - layout.owned.keys()}
        held = [bundle for bundle in layout.bundles if bundle.held] if is_held else []
        found = {n: p for bundle in held for n, p in zip(bundle.names, bundle.parameters, strict=True)}
        return found | {name: layout.moved[name] for name in pulled}
