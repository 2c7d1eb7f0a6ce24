"""What pulls a model back to what it has learned: each hold is one file."""

import inspect
from collections.abc import Callable
from typing import Any, TypeVar

from anchorhold.errors import ConfigurationError
from anchorhold.holds.base import Held, Hold
from anchorhold.holds.of_batches.averaged_gradient import AveragedGradient
from anchorhold.holds.of_batches.buffers import Buffer, Reservoir, Ring
from anchorhold.holds.of_batches.dark_experience import DarkExperience
from anchorhold.holds.of_batches.distillation import Distillation
from anchorhold.holds.of_batches.replay import Replay
from anchorhold.holds.of_weights.asymmetric import Asymmetric
from anchorhold.holds.of_weights.merged_weights import MergedWeights
from anchorhold.holds.of_weights.quadratic import LinearTerm, Quadratic
from anchorhold.holds.of_weights.variational import Variational
from anchorhold.holds.projection import Projection
from anchorhold.registry import Registry, registering_class

H = TypeVar("H", bound=Hold)

HOLDS: Registry[Callable[..., Hold]] = Registry("hold")
"""What makes each hold, by name."""


def register_hold(name: str) -> Callable[[type[H]], type[H]]:
    """Let a hold of one's own be asked for by name, wherever holds are."""
    return registering_class(HOLDS, Hold, name)


def hold(name: str, **settings: Any) -> Hold:
    """Return a hold by its name, with settings of its own."""
    make = HOLDS[name]
    takes = inspect.signature(make).parameters.values()
    anything = any(each.kind is inspect.Parameter.VAR_KEYWORD for each in takes)
    known = list(settings) if anything else [each.name for each in takes]
    if unknown := [each for each in settings if each not in known]:
        raise ConfigurationError(f"The hold {name!r} has no setting {unknown[0]!r}; it has {', '.join(known)}.")
    try:
        return make(**settings)
    except TypeError as error:
        raise ConfigurationError(f"The hold {name!r}: {error}.") from error


register_hold("replay")(Replay)
register_hold("distillation")(Distillation)
register_hold("DER++")(DarkExperience)
register_hold("projection")(Projection)
register_hold("asymmetric")(Asymmetric)
register_hold("A-GEM")(AveragedGradient)
register_hold("variational")(Variational)

__all__ = [
    "HOLDS",
    "Asymmetric",
    "AveragedGradient",
    "Buffer",
    "DarkExperience",
    "Distillation",
    "Held",
    "Hold",
    "LinearTerm",
    "MergedWeights",
    "Projection",
    "Quadratic",
    "Replay",
    "Reservoir",
    "Ring",
    "Variational",
    "hold",
    "register_hold",
]
