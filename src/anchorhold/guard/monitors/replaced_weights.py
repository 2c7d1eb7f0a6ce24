"""Warn of weights that are not where their anchor is, though nothing has trained them since.

They are another model's, or those of a layer that was put in another's place.
"""

from collections.abc import Mapping
from typing import TYPE_CHECKING

from torch import nn

from anchorhold.errors import warn
from anchorhold.guard.monitor import REPLACED, AdapterState, Monitor
from anchorhold.guard.monitors.distances import ELSEWHERE, distance, distance_in_words
from anchorhold.tensors.sharding import local

if TYPE_CHECKING:
    from anchorhold.guard.core import Core, GuardState

ANEW = 0.5
"""How far from its anchor, by the length of that, a parameter may be before it is taken for one that was drawn anew.

Weights that have nothing to do with the anchor, or are all 0, are its whole length away or further. A layer that was
wrapped, sharded, converted or loaded is where it was, and one of another checkpoint of the same training is near.
"""
SHOWN = 4
"""So many of them are named."""


class ReplacedWeights(Monitor):
    """Compare weights with their anchor before a task's first step."""

    name = "replaced-weights"

    def __init__(self, core: "Core") -> None:
        super().__init__(core)
        self._file: str | None = None
        """The file that the state was loaded from, if no step was taken since."""

    def at_load(self, file: str) -> None:
        """Look at the next step whether the model has the weights that belong to a file."""
        self._file = None if self.core.task.steps else file

    def begin_task(self) -> None:
        """Look at the parameters that were replaced, and at all of them after a file was loaded.

        A file that was saved at the end of a task belongs to the model as it was then. Where all of it together is, a
        single layer may yet be another one: a head is little beside a large model.
        """
        core, file = self.core, self._file
        self._file = None
        if not (core.state.strength and core.state.is_anchored):
            return
        self._look_at_replaced()
        # A mean of solutions is where no model was, and what is folded is held as the map that it is part of.
        if file is None or core.options.anchor_kind != "last" or core.space.mapped:
            return
        away = distance(core.runtime.parameters, core.state.anchor)
        if not away <= ELSEWHERE:
            warn(
                f"The model's weights are {distance_in_words(away)} from those that {file!r} was saved with, and are "
                "pulled there. Load the model's own checkpoint of then too: a guard's file has none. If they were "
                "drawn anew, merged or averaged on purpose, pay no heed."
            )
        else:
            self._warn_of_far({n: p for n, p in core.runtime.parameters.items() if n in core.state.anchor})

    def before_penalty(self, parameters: Mapping[str, nn.Parameter], adapters: AdapterState) -> None:
        """Look at the parameters that were replaced, where there may be no step to look at."""
        core = self.core
        if core.task.steps or not core.state.strength:
            return
        if core.runtime.replaced:
            self._look_at_replaced()
        here = ((name, now) for name, now in parameters.items() if now is not core.runtime.parameters[name])
        known = core.runtime.warned.about(REPLACED)
        # Beside parameters there are what a function is called with in their place, for a while.
        new = {n: p for n, p in here if n in core.state.anchor and n not in known and isinstance(p, nn.Parameter)}
        core.runtime.warned.add(REPLACED, new)
        self._warn_of_far(new)

    def _look_at_replaced(self) -> None:
        """Look at held parameters in whose place the model has others since they were consolidated."""
        core = self.core
        others, core.runtime.replaced = core.runtime.replaced - core.runtime.warned.about(REPLACED), frozenset()
        self._warn_of_far({n: p for n, p in core.runtime.parameters.items() if n in others})

    def _warn_of_far(self, others: Mapping[str, nn.Parameter]) -> None:
        """Warn of those of these parameters that are pulled to what others were."""
        core = self.core
        # What is held as part of something else has an anchor that is none of its own, and so has a mean of solutions.
        if not others or (core.options.anchor_kind == "mean" and not core.has_linear_term):
            return
        held = core.state.driving.held_names - core.space.mapped
        away = {n: distance({n: p}, core.state.anchor) for n, p in others.items() if n in held}
        far = [name for name, share in away.items() if share > ANEW and _pulls_at(core.state, name)]
        if far:
            most = max(far, key=lambda name: away[name])
            names = ", ".join(map(repr, far[:SHOWN])) + (f" and {len(far) - SHOWN} more" if far[SHOWN:] else "")
            warn(_REPLACED.format(names=names, away=distance_in_words(away[most]), most=most))


def _pulls_at(state: "GuardState", name: str) -> bool:
    """Whether there is any importance that holds a parameter."""
    matrices = [matrix for matrix in state.driving.held.values() if name in matrix.block.parameters]
    return any(bool(local(tensor).any()) for matrix in matrices for tensor in matrix.state().values())


_REPLACED = (
    "The model has other parameters than those that were consolidated as {names}, and they are pulled to what those "
    "were ({most!r} is {away} from there). If a layer was put in another's place to learn anew, such as a head, call "
    "guard.forget() with these names before training, or leave them out of protect. If it has learned something, "
    "consolidate before it is trained further. If it is to become what the old one was, pay no heed."
)
