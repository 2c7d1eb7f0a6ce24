"""Forms without the damping that those of layers have by default: what was measured before they had any stays so."""

from typing import Any

from anchorhold.forms import FORMS, Form, form
from anchorhold.settings import defaults_at_first


def undamped(name: str) -> Form:
    """Return a form by its name, with the defaults that it had at first."""
    return form(name, **defaults_at_first(FORMS[name]))


def unsaid(name: str) -> dict[str, Any]:
    """Return the settings by which a spec says nothing of them, and has the name that it had then."""
    return dict.fromkeys(defaults_at_first(FORMS[name]))
