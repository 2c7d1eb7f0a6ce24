"""Whether what a user gives as the guard is one."""

from holdfast.consolidation import Consolidator
from holdfast.errors import ConfigurationError


def checked_guard(given: object) -> Consolidator:
    """Return the guard, or say what was given in its place."""
    if not isinstance(given, Consolidator):
        name = f"the class {given.__name__}" if isinstance(given, type) else f"type {type(given).__name__}"
        raise ConfigurationError(
            f"A guard of {name}; expected a Consolidator: "
            "guard = holdfast.Consolidator(model, holdfast.SOS(), strength=...)."
        )
    return given
