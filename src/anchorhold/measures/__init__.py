"""Every measure of the paper, one family a file, and the list of them by name."""

from collections.abc import Callable
from functools import partial
from typing import Any, TypeVar

from anchorhold.errors import ConfigurationError
from anchorhold.measures.asymmetric import AsymmetricSI
from anchorhold.measures.base import Measure, PathMeasure, SampleMeasure, WeightMeasure
from anchorhold.measures.online import OnlineEWC
from anchorhold.measures.path_integral import SI, SIB, SIU
from anchorhold.measures.recurrences import unbiased_alpha
from anchorhold.measures.riemannian_walk import RWalk
from anchorhold.measures.sampled import MAS, AbsoluteFisher, Fisher, RootFisher
from anchorhold.measures.second_moment import SOS, PosteriorPrecision
from anchorhold.measures.weights import L2, FineTune, Magnitude
from anchorhold.registry import Registry, require_name

M = TypeVar("M", bound=Measure)

MEASURES: Registry[Callable[..., Measure]] = Registry("measure")
"""What makes each measure, by the name that the paper gives it."""


def register_measure(name: str) -> Callable[[type[M]], type[M]]:
    """Let a measure of one's own be asked for by name, wherever measures are.

    >>> @register_measure("largest")
    ... @dataclasses.dataclass(frozen=True)
    ... class Largest(WeightMeasure): ...

    Every setting needs a default. Unless the class has a ``name`` of its own, it is called what it is registered as.
    """
    require_name("register_measure", name)

    def register(kind: type[M]) -> type[M]:
        if not (isinstance(kind, type) and issubclass(kind, Measure)):
            raise ConfigurationError(f"register_measure({name!r}) was given {kind!r}; expected a class of measures.")
        MEASURES.check(name, kind)
        nameless = kind.name is Measure.name
        if nameless:
            kind.name = name  # type: ignore[assignment, method-assign]
        try:
            _enter(name, kind)
        except ConfigurationError:
            if nameless:
                del kind.name
            raise
        return kind

    return register


def _enter(name: str, make: Callable[..., Measure]) -> None:
    try:
        called = make().name
    except TypeError as error:
        raise ConfigurationError(
            f"The measure {name!r} cannot be made without settings ({error}); give each a default."
        ) from error
    if called != name:
        raise ConfigurationError(
            f"A measure that calls itself {called!r} was registered as {name!r}; expected one name."
        )
    MEASURES.register(name, make)


_BUILT_IN: dict[str, Callable[..., Measure]] = {
    "SI": SI,
    "SIU": SIU,
    "SIB": SIB,
    "SOS": SOS,
    "EWC": Fisher,
    "EWC-sampled": partial(Fisher, labels="sampled"),
    "EWC-empirical": partial(Fisher, labels="true"),
    "online-EWC": OnlineEWC,
    "sqrtFisher": RootFisher,
    "AF": AbsoluteFisher,
    "MAS": MAS,
    "MASX": partial(MAS, dominant=True),
    "MAS-logits": partial(MAS, output="logits"),
    "MASX-logits": partial(MAS, output="logits", dominant=True),
    "ALASSO": AsymmetricSI,
    "RWalk": RWalk,
    "RWalk-batch": partial(RWalk, fisher="batch"),
    "posterior": PosteriorPrecision,
    "posterior-scaled": partial(PosteriorPrecision, scaled=True),
    "L2": L2,
    "L2-growing": partial(L2, growing=True),
    "magnitude": Magnitude,
    "fine-tune": FineTune,
}
for _name, _make in _BUILT_IN.items():
    _enter(_name, _make)


def default_measures() -> dict[str, Measure]:
    """Return every measure with its default settings, by the name that the paper gives it."""
    return {name: make() for name, make in MEASURES.items()}


def measure(name: str, **settings: Any) -> Measure:
    """Return a measure by its name in :func:`default_measures`, with settings of its own.

    >>> measure("SI", damping=0.001)
    SI(damping=0.001, clamp='task')
    """
    if name not in MEASURES:
        meant = next((key for key in MEASURES if type(MEASURES[key]()).__name__ == name), None)
        if meant is not None:
            raise ConfigurationError(f"No measure is called {name!r}: {name}() goes by the name {meant!r}.")
    make = MEASURES[name]
    try:
        return make(**settings)
    except TypeError as error:
        known = [setting for setting in make().settings() if setting != "kind"]
        raise ConfigurationError(f"{name}: {error}. Its settings are {', '.join(known)}.") from error


__all__ = [
    "L2",
    "MAS",
    "MEASURES",
    "SI",
    "SIB",
    "SIU",
    "SOS",
    "AbsoluteFisher",
    "AsymmetricSI",
    "FineTune",
    "Fisher",
    "Magnitude",
    "Measure",
    "OnlineEWC",
    "PathMeasure",
    "PosteriorPrecision",
    "RWalk",
    "RootFisher",
    "SampleMeasure",
    "WeightMeasure",
    "default_measures",
    "measure",
    "register_measure",
    "unbiased_alpha",
]
