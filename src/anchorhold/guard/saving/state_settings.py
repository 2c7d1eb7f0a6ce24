"""What a state says of how its guard was made, and whether that is how this one is."""

import dataclasses
from collections.abc import Mapping
from typing import Any

from anchorhold.errors import StateError
from anchorhold.forms import Diagonal
from anchorhold.guard.arguments.checked_arguments import may_be_implicit
from anchorhold.guard.memory import Memory
from anchorhold.guard.saving.form_of_state import what_to_give
from anchorhold.retention import Tolerance
from anchorhold.retention.controller import Control
from anchorhold.settings import plain

USUAL_SETTINGS: dict[str, Any] = {
    "form": Diagonal().settings(),
    "holds": {},
    "anchor": "last",
    "gradient_term": False,
    "batch_norm": None,
    "implicit": False,
    "space": "weights",
}
"""What a state is silent about."""


def beside_the_usual(memory: Memory) -> dict[str, Any]:
    """Return what a state says only where it is not as usual: the form, holds, where they are centred, batch norm."""
    here = {
        "form": plain("the form", memory.driving.form.settings()),
        "holds": {hold.name: plain(hold.name, hold.settings()) for hold in memory.holds},
        "anchor": memory.anchor_kind,
        "gradient_term": memory.gradient_term,
        "batch_norm": memory.batch_norm,
        "implicit": bool(memory.implicit),
        "space": memory.space,
    }
    return {what: given for what, given in here.items() if given != USUAL_SETTINGS[what]}


def decided_pull(memory: Memory) -> dict[str, bool]:
    """Return what optimisers have decided of the pull, where it was left to them: earlier versions' states had none."""
    if not memory.implicit_is_open:
        return {}
    return {"implicit_is_open": True} | ({} if memory.implicit is None else {"implicit": memory.implicit})


def how_strong(memory: Memory) -> dict[str, Any]:
    """Return what the strength is by, where that is more than one number."""
    here: dict[str, Any] = {}
    if memory.driving.strengths is not None:
        here["strengths"] = [[pattern, c] for pattern, c in memory.driving.strengths.given.items()]
    if memory.relative_strength is not None:
        here["relative_strength"] = memory.relative_strength
    if memory.made_with not in (None, memory.said_strength):  # set anew since, as by a schedule
        here["made_with"] = memory.made_with
    if memory.tolerance is not None:
        here["tolerance"] = dataclasses.asdict(memory.tolerance.settled_in(memory.driving.form))
    if marks := memory.kept.marks:
        here["kept"] = [[name, marked] for name, marked in marks.items()]
    if memory.control.trace:
        here["control"] = memory.control.plain()
    return here


def check_settings(memory: Memory, state: Mapping[str, Any]) -> None:
    """Refuse a state of other measures, or of a guard that was made in another way."""
    if (state["driver"], state["measures"]) != (memory.driver, memory.settings):
        raise StateError(
            f"The state was made with {state['measures']}, driven by {state['driver']!r}; this Guard has "
            f"{memory.settings}, driven by {memory.driver!r}. Make one with the same measures and settings."
        )
    here = beside_the_usual(memory)
    for what, usual in USUAL_SETTINGS.items():
        then, now = state.get(what, usual), here.get(what, usual)
        if then != now and not (what == "implicit" and _may_differ(memory, state)):
            raise StateError(
                f"The state was made with {what}={then}; this Guard has {what}={now}. Make one with the same"
                f"{_what_else(what, then, now)}."
            )


def _what_else(what: str, then: object, now: object) -> str:
    """Return what can be done about a setting that is another one in a state."""
    if what == "form" and (given := what_to_give(then)):
        return f": form={given}"
    return ", or leave it out and set guard.implicit after loading" if what == "implicit" and now else ""


def _may_differ(memory: Memory, state: Mapping[str, Any]) -> bool:
    """Whether a state's pull may be another than the guard's: one of the two was never told."""
    return bool(state.get("implicit_is_open")) or _may_be_told(memory)


def _may_be_told(memory: Memory) -> bool:
    """Whether a guard takes its pull from a state: nobody has said so here, and both would do."""
    may_be = may_be_implicit(memory.driving.form, memory.batch_norm, leans=memory.leans)
    return may_be and not memory.implicit_given


def take_its_pull(memory: Memory, state: Mapping[str, Any]) -> None:
    """Go on as a state was: its optimisers decided, or in the gradient for good, as in earlier versions."""
    if _may_be_told(memory):
        then = state.get("implicit")
        memory.implicit_is_open = bool(then or state.get("implicit_is_open"))
        memory.implicit = then if memory.implicit_is_open and memory.space != "merged" else False


def followed_tolerance(memory: Memory, state: Mapping[str, Any]) -> tuple[Tolerance | None, Control]:
    """Return the tolerance of a state, and where following it was at; one that is silent leaves the guard's own."""
    given = state.get("tolerance")
    if given is not None and memory.tolerance is None:
        raise StateError(
            f"The state was made with tolerance={given['nats']:g}, and this Guard has a strength. Make one with "
            "a tolerance."
        )
    for key, said in {"strengths": "strengths by pattern", "relative_strength": "a relative strength"}.items():
        if memory.tolerance is not None and key in state:
            raise StateError(
                f"The state was made with {said}, and this Guard has tolerance={memory.tolerance.nats:g}. Make "
                "one as it was made."
            )
    try:
        control = Control.restored(state["control"]) if "control" in state else Control()
        if given is not None and given["damping"] is None:  # which meant this where a state was made without saying
            given = {**given, "damping": 0.01 if memory.driving.form.elementwise else 0.1}
        return memory.tolerance if given is None else Tolerance(**given), control
    except (KeyError, TypeError, ValueError) as error:
        raise StateError(
            f"The state is damaged: what it says of its tolerance cannot be read ({type(error).__name__}: {error}). "
            "Use another copy."
        ) from error
