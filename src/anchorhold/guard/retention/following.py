"""The strength that follows a tolerance: a look at kept inputs every few steps, and what is made of it.

Which inputs are looked at, and when, depends on sizes and the number of the step alone, never on a clock, so that a run
that was stopped goes on with the same strengths.
"""

import math
from collections.abc import Mapping
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.utils._pytree import tree_flatten

from anchorhold.errors import ConfigurationError, OrderError, warn
from anchorhold.forms.base import is_mean_of_squares
from anchorhold.guard.arguments.strengths import Importance
from anchorhold.guard.core import Core
from anchorhold.guard.retention.evaluate import look, refuse_unless_ranks_agree, warn_of_another_model
from anchorhold.guard.rollback.weight_average import evaluated_weights
from anchorhold.guard.stepping.optimizers.effective_rate import largest_strength, sgd_rates
from anchorhold.guard.stepping.training_calls import TrainingCalls
from anchorhold.holds.of_weights.quadratic import penalty_value
from anchorhold.retention import Retention
from anchorhold.retention.controller import TracePoint
from anchorhold.retention.diagnosis import MOST, used_before
from anchorhold.retention.kept_set import PREDICTIONS, TOGETHER, KeptSet

SHARE = 0.1
"""What looking may cost of a step's time."""
STEP = 3.0
"""What a step costs, in forward passes of its batch: the backward pass is two."""
OFTEN = 8
"""The fewest steps between looks: on a GPU a look at a few samples takes about as long as a small network's step, and
of a large one that trains in 16 bits too, since outputs are compared in the precision of the weights."""


class Following:
    """Look at kept inputs while a model is trained, and let the strength follow if there is a tolerance."""

    def __init__(self, core: Core, calls: TrainingCalls) -> None:
        self.core = core
        self.calls = calls
        self._bounds: WeakKeyDictionary[Optimizer, tuple[object, float]] = WeakKeyDictionary()
        """The largest strength that each optimizer of this task bears, with what that was found by."""
        self._has_warned_of_bound = False
        self._allowed: float | None = None
        """The tolerance that the last task began with."""

    @property
    def controls(self) -> bool:
        """Return whether there is a strength to be controlled."""
        return self.core.state.tolerance is not None and self.core.state.is_anchored

    def before_step(self, optimizer: Optimizer) -> None:
        """Keep the strength within what the optimizer bears at its rate of now."""
        self.refuse_without_inputs()
        if self.controls and self.core.state.control.log_start is not None:
            self.core.state.strength = self.core.state.control.bounded(self._bearable(optimizer))

    def _bearable(self, optimizer: Optimizer) -> float:
        """Return the largest strength that all optimizers bear which were seen so far."""
        found_by = (self.core.runtime.version, sgd_rates(optimizer))
        known = self._bounds.get(optimizer)
        if known is None or known[0] != found_by:
            bound = largest_strength(self.core, optimizer, self.core.runtime.parameters)
            self._bounds[optimizer] = found_by, bound
        return min(bound for _, bound in self._bounds.values())

    def refuse_without_inputs(self) -> None:
        """Refuse a held step without inputs that the tolerance could be measured on."""
        core = self.core
        if self.controls and not core.state.kept and not core.state.kept.expected:
            assert core.state.tolerance is not None
            raise OrderError(
                f"tolerance={core.state.tolerance.nats:g} and no inputs to measure it on. Before training goes on, "
                "call guard.keep(inputs) with a few hundred inputs of what the model is to keep: without labels will "
                "do, and others than it was trained on or measured with."
            )
        if self.controls:
            core.state.kept.refuse_unless_complete()

    def begin_task(self, optimizer: Optimizer) -> None:
        """See where a task begins, before its first step, and with what strength."""
        core, control = self.core, self.core.state.control
        if not core.state.kept:
            return
        self.refuse_without_inputs()
        refuse_unless_ranks_agree(core)
        at_last_end = control.worst if control.latest else None
        control.begin_task()
        self._bounds.clear()  # those of earlier tasks' optimizers do not count any more
        if self.controls:
            control.begin(_first_strength(core))
            core.state.strength = control.bounded(self._bearable(optimizer))
        found = look(core)
        control.latest = {each.name: each.kl for each in found.sets}
        control.at = 0
        self._note(0)
        self._warn_if_used(found, at_last_end)

    def _warn_if_used(self, found: Retention, at_last_end: float | None) -> None:
        """Say so where most of a tolerance is used before a task, unless more was allowed than for the task before."""
        before, self._allowed = self._allowed, found.tolerance
        if found.worst.name in warn_of_another_model(self.core, found):
            return  # which says how much of the tolerance that leaves
        if not self.controls or found.tolerance is None or found.kl <= MOST * found.tolerance:
            return
        if before is None or found.tolerance <= before or not found.is_within:
            unproven = self.core.state.kept[found.worst.name].is_unproven
            warn(used_before(found.worst.name, found.kl, found.tolerance, at_last_end, is_unproven=unproven))

    def after_step(self, optimizer: Optimizer, owned: Mapping[str, nn.Parameter]) -> None:
        """Look, if it is time to, and let the strength follow."""
        core, control = self.core, self.core.state.control
        steps = max(core.task.steps.values(), default=0)
        if not core.state.kept or steps == control.at:
            return
        if not control.every:
            control.every = self._decided()
        if not self._is_due(steps):
            return
        control.at = steps
        # One set after the other, so that a look costs the same however many are kept.
        names = sorted(core.state.kept)
        kept = core.state.kept[names[control.looks % len(names)]]
        parts = part_of(kept, control.cursors.get(kept.name, 0))
        with evaluated_weights([optimizer]):
            found = look(core, {kept.name: parts})
        control.cursors[kept.name] = (parts[-1] + 1) % len(kept.chunks)
        control.latest = {name: kl for name, kl in control.latest.items() if name in core.state.kept}
        control.latest[kept.name] = found.kl
        control.looks += 1
        if self.controls:
            assert core.state.tolerance is not None
            if control.log_start is None:  # inputs were first kept in the middle of a task
                control.begin(_first_strength(core))
            aim, bound = core.state.tolerance.aim * core.state.tolerance.nats, self._bearable(optimizer)
            core.state.strength = control.follow(aim, bound)
            if control.worst > aim and core.state.strength >= (1 - 1e-6) * bound:
                self._warn_of_bound(bound)
        self._note(steps)

    def _is_due(self, steps: int) -> bool:
        """Return whether to look after so many steps; of weights that wait for a pull, after that."""
        control, latest = self.core.state.control, steps - steps % self.core.state.control.every
        if self.core.state.pull_every.value == 1:
            return steps == latest
        return 0 < latest > control.at and not self.core.task.waiting

    def _warn_of_bound(self, bound: float) -> None:
        """Say once that more is lost than is aimed at, and that no larger strength can be borne."""
        if self._has_warned_of_bound:
            return
        self._has_warned_of_bound = True
        control, tolerance = self.core.state.control, self.core.state.tolerance
        assert tolerance is not None
        warn(
            f"{control.worst:.3g} nats are lost after step {control.at}, with a tolerance of {tolerance.nats:g}, and "
            f"the strength is {bound:.3g}, the largest that this SGD bears at its rate: what it cannot hold back is "
            "taken back at the end, at the price of what is new. implicit=True has no such bound; a smaller rate has a "
            "larger one."
        )

    def _note(self, step: int) -> None:
        control = self.core.state.control
        control.most = max(control.most, control.worst)
        control.note(TracePoint(step, control.worst, self.core.state.strength, predicted(self.core)))

    def _decided(self) -> int:
        """Return after how many steps to look, as often as costs allow, the same on all ranks."""
        core = self.core
        if core.state.tolerance is not None and core.state.tolerance.every is not None:
            return core.state.tolerance.every
        looked = max(sum(kept.chunks[n].numbers for n in part_of(kept, 0)) for kept in core.state.kept.values())
        some = next(iter(core.state.kept.values())).chunks[0]
        last = self.calls.last
        leaves = [] if last is None else tree_flatten((last.args, dict(last.kwargs)))[0]
        trained = max((leaf.numel() for leaf in leaves if isinstance(leaf, Tensor)), default=0)
        trained = trained or 32 * some.numbers // some.size
        if not any(hold.runs_model for hold in core.options.holds):
            self.calls.release()  # it is known for good, and remembering every call costs a little
        return max(OFTEN, *core.runtime.ranks.each(lambda: math.ceil(looked / (SHARE * STEP * trained))))


def part_of(kept: KeptSet, cursor: int) -> list[int]:
    """Return the chunks of a set that are looked at together, from one on; the last part may be shorter."""
    found: list[int] = []
    rows = samples = 0
    for number in range(cursor % len(kept.chunks), len(kept.chunks)):
        found.append(number)
        rows, samples = rows + len(kept.chunks[number].log_p), samples + kept.chunks[number].size
        if rows >= PREDICTIONS and samples >= TOGETHER:
            break
    return found


def _first_strength(core: Core) -> float:
    """Return the strength to begin with, by the mean importance of all that was found so far."""
    assert core.state.tolerance is not None
    start = core.state.tolerance.start_in(core.state.driving.form)
    strength = Importance.of(core.state.driving.total, {**core.measured, **core.state.anchor}).strength(start)
    if not strength > 0:
        raise ConfigurationError(
            f"tolerance={core.state.tolerance.nats:g} with {core.state.driver}, whose importances are 0 everywhere: "
            "there is nothing whose strength could follow it. Take a measure that holds weights, such as Fisher()."
        )
    return strength


@torch.no_grad()
def predicted(core: Core) -> float | None:
    """Return the KL that the importance predicts to second order, where it is one of squared gradients.

    That is ½⟨D, Q(D)⟩/T, of a token, as the KL that is measured; ½⟨D, Q(D)⟩ of a sample where T is not known.
    """
    if not core.state.is_anchored or not is_mean_of_squares(core.state.driving.measure):
        return None
    coordinates = core.space.coordinates(core.runtime.parameters)
    own = penalty_value(coordinates, core.state.driving.total, core.state.anchor, 0.5)
    found = float(own) + core.value_of_changes(core.state.driving.total, 0.5)
    return found / (core.state.tokens_of_all or 1.0)
