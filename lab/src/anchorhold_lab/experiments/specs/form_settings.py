"""A form's settings in a spec: what is left unsaid means for ever what it meant when runs were first named.

The library's defaults may change, as the damping of forms of layers has, and a run that was named before must not come
to mean another one. So new runs say those settings, and older ones that say nothing have the defaults of that time.
"""

from collections.abc import Mapping
from typing import Any

from anchorhold.forms import FORMS, Form, form
from anchorhold.settings import default_of, defaults_at_first


def form_as_named(name: str, settings: Mapping[str, Any]) -> Form:
    """Return the form of a spec that has these settings."""
    return form(name, **{**defaults_at_first(FORMS[name]), **settings})


def said_settings(name: str, asked: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings of a new spec: those asked for, and all whose default is another one than at first.

    ``None`` leaves such a setting unsaid, as older specs do: ``{"damping": None}`` is the name of a run without damping
    from before forms had any by default, and ``{"damping": 0.0}`` that of another one which says so.
    """
    at_first = defaults_at_first(FORMS[name])
    settings = {setting: default_of(FORMS[name], setting) for setting in at_first} | dict(asked)
    return {setting: value for setting, value in settings.items() if setting not in at_first or value is not None}


def every_setting(settings: Mapping[str, Any], made: Form) -> dict[str, Any]:
    """Return the settings of a spec with those that it leaves unsaid since their defaults have changed."""
    return {setting: getattr(made, setting) for setting in defaults_at_first(type(made))} | dict(settings)


def unsaid(settings: Mapping[str, Any], name: str) -> dict[str, None]:
    """Return what a spec says nothing of though new ones do, as :func:`said_settings` has to be told it."""
    return {setting: None for setting in defaults_at_first(FORMS[name]) if setting not in settings}
