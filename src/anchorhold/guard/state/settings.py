"""Whether a state is of a guard made in the same way, and what a guard takes from it where it was not told how.

A form's name means its defaults, and those of forms of layers were others at first: they had no damping. A state says
which settings its form has, so a guard that was given nothing but the name goes on with the state's.
"""

import dataclasses
from collections.abc import Mapping
from typing import Any, get_args

from anchorhold.errors import ConfigurationError, StateError, warn
from anchorhold.forms import Form, form
from anchorhold.guard.arguments.checked_arguments import may_be_implicit
from anchorhold.guard.core import Core, Setting
from anchorhold.guard.refreshing import go_over_to
from anchorhold.guard.state.schema import VALUES
from anchorhold.settings import defaults_at_first, plain
from anchorhold.spaces import SpaceName


def check_settings(core: Core, state: Mapping[str, Any]) -> None:
    """Raise StateError if a state has other measures, or is of a guard that was made in another way."""
    if (state["driver"], state["measures"]) != (core.state.driver, core.state.settings):
        raise StateError(
            f"The state was made with {state['measures']}, driven by {state['driver']!r}; this Guard has "
            f"{core.state.settings}, driven by {core.state.driver!r}. Make one with the same measures and settings."
        )
    for value in VALUES:
        if not value.must_match:
            continue
        then, now = state.get(value.key, value.default), value.value_in(core)
        # A state's pull may be another than the guard's where nobody decided on one of the two.
        may_differ = value.key == "implicit" and (bool(state.get("implicit_is_open")) or _takes_its_pull(core))
        if then != now and not may_differ:
            advice = ""
            if value.key == "form" and (given := _form_to_give(then)):
                advice = f": form={given}"
            elif value.key == "implicit" and now:
                advice = ", or leave it out and set guard.options.implicit after loading"
            raise StateError(
                f"The state was made with {value.key}={then}; this Guard has {value.key}={now}. Make one with the same"
                f"{advice}."
            )
    tolerance = core.state.tolerance
    if "tolerance" in state and tolerance is None:
        raise StateError(
            f"The state was made with tolerance={state['tolerance']['nats']:g}, and this Guard has "
            f"{core.state.strength_text}. Make one with a tolerance."
        )
    rate = state.get("exchange_rate")
    if rate is not None and ("strengths" in state or not core.state.driving.measure.is_in_nats):
        raise StateError(
            f"The state is damaged: it has exchange_rate={rate:g}, beside strengths by pattern or with a measure that "
            "is not in nats. Use another copy."
        )
    if tolerance is not None and "strengths" in state:
        raise StateError(
            f"The state was made with strengths by pattern, and this Guard has tolerance={tolerance.nats:g}. Make one "
            "as it was made."
        )


def _form_to_give(settings: object) -> str:
    """Return the form that has a state's settings as it is written in Python, or nothing where there is none."""
    try:
        return _in_python(form(**settings)) if isinstance(settings, dict) else ""
    except (ConfigurationError, TypeError):
        return ""


def _takes_its_pull(core: Core) -> bool:
    """Return whether a guard takes its pull from a state: nobody has decided here, and both would do."""
    may_be = may_be_implicit(core.state.driving.form, core.options.batch_norm, has_linear_term=core.has_linear_term)
    return may_be and not core.state.implicit.is_given


def take_its_pull(core: Core, state: Mapping[str, Any]) -> None:
    """Take the pull that a state's optimizers decided on; of silent states, as earlier versions', the gradient's."""
    if _takes_its_pull(core):
        then = state.get("implicit")
        is_open = bool(then or state.get("implicit_is_open"))
        value = then if is_open and not core.space_kind.why_explicit else False
        # A hold for several steps at once stays after them, whatever is attached.
        is_open = is_open and core.state.pull_every.value == 1
        core.state.implicit = Setting(value, "open" if is_open else "restored")


def take_its_space(core: Core, state: Mapping[str, Any]) -> None:
    """Hold adapters as the state does, where this guard was not told how. Raise StateError if the model cannot be."""
    then = state.get("space", "weights")
    if core.state.space.is_given or then == core.state.space.value or then not in get_args(SpaceName):
        return
    try:
        go_over_to(core, then)
    except ConfigurationError as error:
        raise StateError(f"The state has space={then!r}, in which this model cannot be held: {error}") from error


def take_its_form(core: Core, state: Mapping[str, Any]) -> None:
    """Let a form that was given by its name be what the name meant when the state was made."""
    named = core.options.named_form
    if named is None:
        return
    at_first = defaults_at_first(type(named))
    for meaning in (named, form(named.name, **at_first)) if at_first else (named,):
        if plain("the form", meaning.settings()) == state.get("form"):
            core.state.driving.form = meaning


def warn_of_its_form(core: Core, before: Form) -> None:
    """Warn if a state has brought a form that its name does not mean any more."""
    named, own = core.options.named_form, core.state.driving.form
    if named is None or own in (named, before):
        return
    then, now = ({name: getattr(each, name) for name in defaults_at_first(type(named))} for each in (own, named))
    warn(
        f"The state was made with {_listed(then)}, as form={own.name!r} was at that time; it has {_listed(now)} by "
        f"now. The guard goes on as the state was made. Give form={_in_python(own)} to say that this is meant, or "
        f"consolidate anew for the other."
    )


def _in_python(made: Form) -> str:
    """Return a form with its settings as it is written in Python, defaults left out."""
    usual = {field.name: field.default for field in dataclasses.fields(made)}
    return f"{type(made).__name__}({_listed({n: getattr(made, n) for n in usual if getattr(made, n) != usual[n]})})"


def _listed(settings: Mapping[str, Any]) -> str:
    return ", ".join(f"{name}={value!r}" for name, value in settings.items())
