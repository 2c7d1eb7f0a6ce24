"""Warn of protection that is not there: parameters that nothing holds though something should.

All of it is legal, and some of it meant, so these are warnings: at a task's first step, and where an optimizer gets
further parameters.
"""

from collections.abc import Mapping
from typing import TYPE_CHECKING

from torch import nn

from anchorhold.errors import warn
from anchorhold.guard.monitor import AdapterState, Monitor, and_others
from anchorhold.measures import FineTune

if TYPE_CHECKING:
    from anchorhold.guard.core import Core

_EVERYTHING = "*"
"""Stands for all parameters, where none is held."""


class MissingProtection(Monitor):
    """Warn at a task's first step, and where an optimizer gets further parameters, of those that nothing holds."""

    name = "missing-protection"

    def __init__(self, core: "Core") -> None:
        super().__init__(core)
        self._warned: set[str] = set()

    def begin_task(self) -> None:
        """Look anew, whatever the user was warned of in the last task."""
        self._warned = set()

    def before_penalty(self, parameters: Mapping[str, nn.Parameter], adapters: AdapterState) -> None:
        """Look whether a strength was given."""
        self._look_at_the_strength()

    def before_parameters(self, parameters: Mapping[str, nn.Parameter]) -> None:
        """Look at the parameters that an attached optimizer is about to move, and is asked to hold."""
        core = self.core
        if _EVERYTHING in self._warned:
            return
        if core.options.holds:
            self._look_at_holds()
            self._look_at_the_strength()
            return
        if not core.state.asks_to_hold:
            return
        if isinstance(core.state.driving.measure, FineTune):
            return  # which is to hold nothing
        if not core.state.is_anchored:
            if not core.options.from_scratch:
                self._warned.add(_EVERYTHING)
                warn(_NOTHING_YET.format(strength=core.state.strength_text, measure=core.state.driver))
            return
        largest = core.largest_importance
        if not any(largest.values()):
            self._warned.add(_EVERYTHING)
            warn(_NOTHING_MATTERS.format(measure=core.state.driver))
            return
        self._look_at_the_strength()
        frozen = [name for name in parameters if name in core.state.left_frozen and name not in self._warned]
        thawed = [name for name in frozen if not largest.get(name)]
        if thawed:
            self._warned |= set(thawed)
            warn(_THAWED.format(names=and_others(thawed)))

    def _look_at_holds(self) -> None:
        """Look whether any hold has something to keep, and the guard's own, beside them, anything to pull at.

        What a hold keeps, and how much of the model, is its own affair.
        """
        core = self.core
        if core.options.from_scratch:
            return
        if all(hold.waits(core.state.tasks) for hold in core.options.holds):
            self._warned.add(_EVERYTHING)
            warn(_HOLDS_WAIT.format(names=", ".join(hold.name for hold in core.options.holds)))
        elif core.state.asks_to_hold and not core.state.anchor and not isinstance(core.state.driving.measure, FineTune):
            self._warned.add(_EVERYTHING)
            warn(_NOTHING_OF_ITS_OWN.format(strength=core.state.strength_text, measure=core.state.driver))

    def _look_at_the_strength(self) -> None:
        """Say once, where weights are held, that nobody has said how strongly."""
        core = self.core
        if isinstance(core.state.driving.measure, FineTune) or not (
            core.state.is_anchored and core.state.strength_is_assumed
        ):
            return
        in_nats = core.state.driving.measure.is_in_nats
        rate = "exchange_rate=, whose unit is nats (1 to begin with), " if in_nats else ""
        core.runtime.warned.once("no strength", _UNSAID.format(measure=core.state.driver, rate=rate))


_NOTHING_YET = (
    "This guard holds nothing yet: no task has been consolidated, so {strength} has nothing to pull at. If "
    "the model is trained from scratch that is as it should be: Guard(..., from_scratch=True) says so. If it is "
    "a pretrained one, call consolidate(batches) before training, with a measure that looks at data, such as Fisher() "
    "or MAS(), and data that stands for what it knows; {measure} will know of this task at its end."
)

_NOTHING_OF_ITS_OWN = (
    "This guard holds nothing yet by {measure}: no task has been consolidated, so {strength} has nothing to pull "
    "at, and only the holds beside it act. Call consolidate(batches) before training, or say that this is meant: "
    "Guard(model, 'fine-tune', holds=[...]), or from_scratch=True for a model that has learned nothing yet."
)

_HOLDS_WAIT = (
    "This guard holds nothing yet: {names} keeps what a model was or had seen when a task was consolidated, and none "
    "has been. If the model is trained from scratch that is as it should be: Guard(..., from_scratch=True) says "
    "so. If it is a pretrained one, call consolidate(batches) before training, with data that stands for what it knows."
)

_NOTHING_MATTERS = (
    "{measure} has found that every weight has importance 0, so nothing is held, at any strength. Look at what was "
    "consolidated: outputs that do not depend on the protected parameters, labels that say nothing, steps that moved "
    "nothing."
)

_UNSAID = (
    "No strength was given to this guard, and {measure} holds with 1. Each measure's importances have a size of their "
    "own: where a strength was searched for, the best was 8 to 50,000 for EWC as a diagonal and 1 to 500 for SOS, so "
    "that with 1 next to nothing may be held. Give {rate}tolerance=, how much may be lost on inputs that guard.keep() "
    "is given, or strength=, 1.0 too if that is meant: docs/guides/how-strong.md has what was best where."
)

_THAWED = (
    "Frozen until the last task was consolidated, and trained now: {names}. Their importance is not known, so nothing "
    "holds them. If they have learned something, consolidate before they are thawed with a measure that looks at data, "
    "such as Fisher() or MAS(), and name them in protect (protect='*' for all parameters), which then covers frozen "
    "ones too; of new heads this is as it should be."
)
