"""What a state says of how its guard was made, and whether that is how this one is."""

import dataclasses
from collections.abc import Mapping
from typing import Any

from anchorhold.errors import StateError
from anchorhold.forms import Diagonal
from anchorhold.guard.arguments.checked_arguments import may_be_implicit
from anchorhold.guard.core import Core, GuardState, Setting
from anchorhold.guard.state.form import what_to_give
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


def beside_the_usual(core: Core) -> dict[str, Any]:
    """Return what a state says only where it is not as usual: the form, holds, where they are centred, batch norm."""
    here = {
        "form": plain("the form", core.state.driving.form.settings()),
        "holds": {hold.name: plain(hold.name, hold.settings()) for hold in core.options.holds},
        "anchor": core.options.anchor_kind,
        "gradient_term": core.options.gradient_term,
        "batch_norm": core.options.batch_norm,
        "implicit": bool(core.state.implicit.value),
        "space": core.state.space.value,
    }
    return {what: given for what, given in here.items() if given != USUAL_SETTINGS[what]}


def decided_pull(state: GuardState) -> dict[str, bool]:
    """Return what optimisers have decided of the pull, where it was left to them: earlier versions' states had none."""
    if not state.implicit.is_open:
        return {}
    return {"implicit_is_open": True} | ({} if state.implicit.value is None else {"implicit": state.implicit.value})


def how_strong(state: GuardState) -> dict[str, Any]:
    """Return what the strength is by, where that is more than one number."""
    here: dict[str, Any] = {}
    if state.driving.strengths is not None:
        here["strengths"] = [[pattern, c] for pattern, c in state.driving.strengths.given.items()]
    if state.relative_strength is not None:
        here["relative_strength"] = state.relative_strength
    if state.asked.value not in (None, state.said_strength):  # set anew since, as by a schedule
        here["made_with"] = state.asked.value
    if state.tolerance is not None:
        here["tolerance"] = dataclasses.asdict(state.tolerance.settled_in(state.driving.form))
    if marks := state.kept.marks:
        here["kept"] = [[name, marked] for name, marked in marks.items()]
    if state.control.trace:
        here["control"] = state.control.plain()
    return here


def check_settings(core: Core, state: Mapping[str, Any]) -> None:
    """Refuse a state of other measures, or of a guard that was made in another way."""
    if (state["driver"], state["measures"]) != (core.state.driver, core.state.settings):
        raise StateError(
            f"The state was made with {state['measures']}, driven by {state['driver']!r}; this Guard has "
            f"{core.state.settings}, driven by {core.state.driver!r}. Make one with the same measures and settings."
        )
    here = beside_the_usual(core)
    for what, usual in USUAL_SETTINGS.items():
        then, now = state.get(what, usual), here.get(what, usual)
        if then != now and not (what == "implicit" and _may_differ(core, state)):
            raise StateError(
                f"The state was made with {what}={then}; this Guard has {what}={now}. Make one with the same"
                f"{_what_else(what, then, now)}."
            )


def _what_else(what: str, then: object, now: object) -> str:
    """Return what can be done about a setting that is another one in a state."""
    if what == "form" and (given := what_to_give(then)):
        return f": form={given}"
    return ", or leave it out and set guard.implicit after loading" if what == "implicit" and now else ""


def _may_differ(core: Core, state: Mapping[str, Any]) -> bool:
    """Whether a state's pull may be another than the guard's: one of the two was never told."""
    return bool(state.get("implicit_is_open")) or _may_be_told(core)


def _may_be_told(core: Core) -> bool:
    """Whether a guard takes its pull from a state: nobody has said so here, and both would do."""
    may_be = may_be_implicit(core.state.driving.form, core.options.batch_norm, has_linear_term=core.has_linear_term)
    return may_be and not core.state.implicit.is_given


def take_its_pull(core: Core, state: Mapping[str, Any]) -> None:
    """Go on as a state was: its optimisers decided, or in the gradient for good, as in earlier versions."""
    if _may_be_told(core):
        then = state.get("implicit")
        is_open = bool(then or state.get("implicit_is_open"))
        value = then if is_open and core.state.space.value != "merged" else False
        core.state.implicit = Setting(value, "open" if is_open else "restored")


def followed_tolerance(core: Core, state: Mapping[str, Any]) -> tuple[Tolerance | None, Control]:
    """Return the tolerance of a state, and where following it was at; one that is silent leaves the guard's own."""
    given = state.get("tolerance")
    if given is not None and core.state.tolerance is None:
        raise StateError(
            f"The state was made with tolerance={given['nats']:g}, and this Guard has a strength. Make one with "
            "a tolerance."
        )
    for key, said in {"strengths": "strengths by pattern", "relative_strength": "a relative strength"}.items():
        if core.state.tolerance is not None and key in state:
            raise StateError(
                f"The state was made with {said}, and this Guard has tolerance={core.state.tolerance.nats:g}. Make "
                "one as it was made."
            )
    try:
        control = Control.restored(state["control"]) if "control" in state else Control()
        if given is not None and given["damping"] is None:  # which meant this where a state was made without saying
            given = {**given, "damping": 0.01 if core.state.driving.form.elementwise else 0.1}
        return core.state.tolerance if given is None else Tolerance(**given), control
    except (KeyError, TypeError, ValueError) as error:
        raise StateError(
            f"The state is damaged: what it says of its tolerance cannot be read ({type(error).__name__}: {error}). "
            "Use another copy."
        ) from error
