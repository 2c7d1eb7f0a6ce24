"""The form that a state was made with, where a guard was given a form's name alone.

A name means what its form's defaults are, and those of forms of layers were others at first: they had no damping.
A state says which settings it has, so a guard that was told nothing but the name goes on with the state's.
"""

import dataclasses
from collections.abc import Mapping
from typing import Any

from anchorhold.errors import ConfigurationError, warn
from anchorhold.forms import Form, form
from anchorhold.guard.core import Core
from anchorhold.settings import defaults_at_first, plain


def take_its_form(core: Core, state: Mapping[str, Any]) -> None:
    """Let a form that was given by its name be what that name meant when a state was made."""
    named = core.options.named_form
    if named is None:
        return
    at_first = defaults_at_first(type(named))
    for meaning in (named, form(named.name, **at_first)) if at_first else (named,):
        if plain("the form", meaning.settings()) == state.get("form"):
            core.state.driving.form = meaning


def warn_of_its_form(core: Core, before: Form) -> None:
    """Say so where a state has brought a form that its name does not mean any more."""
    named, own = core.options.named_form, core.state.driving.form
    if named is None or own in (named, before):
        return
    then, now = ({name: getattr(each, name) for name in defaults_at_first(type(named))} for each in (own, named))
    warn(
        f"The state was made with {_listed(then)}, as form={own.name!r} was at that time; it has {_listed(now)} by "
        f"now. The guard goes on as the state was made. Give form={_in_python(own)} to say that this is meant, or "
        f"consolidate anew for the other."
    )


def what_to_give(settings: object) -> str:
    """Return the form that has a state's settings as it is written in Python, or nothing where there is none."""
    try:
        return _in_python(form(**settings)) if isinstance(settings, dict) else ""
    except (ConfigurationError, TypeError):
        return ""


def _in_python(made: Form) -> str:
    """Return a form with its settings, the usual ones left out."""
    usual = {field.name: field.default for field in dataclasses.fields(made)}
    return f"{type(made).__name__}({_listed({n: getattr(made, n) for n in usual if getattr(made, n) != usual[n]})})"


def _listed(settings: Mapping[str, Any]) -> str:
    return ", ".join(f"{name}={value!r}" for name, value in settings.items())
