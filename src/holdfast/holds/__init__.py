"""What pulls a model back to what it has learned: each hold is one file."""

from collections.abc import Callable
from typing import Any, TypeVar

from holdfast.errors import ConfigurationError
from holdfast.holds.base import Held, Hold
from holdfast.holds.quadratic import Quadratic
from holdfast.registry import Registry, require_name

H = TypeVar("H", bound=Hold)

HOLDS: Registry[Callable[..., Hold]] = Registry("hold")
"""What makes each hold, by name."""


def register_hold(name: str) -> Callable[[type[H]], type[H]]:
    """Let a hold of one's own be asked for by name, wherever holds are."""
    require_name("register_hold", name)

    def register(kind: type[H]) -> type[H]:
        if not (isinstance(kind, type) and issubclass(kind, Hold)):
            raise ConfigurationError(f"register_hold({name!r}) was given {kind!r}; expected a class of holds.")
        kind.name = name
        HOLDS.register(name, kind)
        return kind

    return register


def hold(name: str, **settings: Any) -> Hold:
    """Return a hold by its name, with settings of its own."""
    try:
        return HOLDS[name](**settings)
    except TypeError as error:
        raise ConfigurationError(f"The hold {name!r}: {error}.") from error


__all__ = ["HOLDS", "Held", "Hold", "Quadratic", "hold", "register_hold"]
