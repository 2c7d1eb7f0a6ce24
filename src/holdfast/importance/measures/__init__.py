"""Every measure of the paper, one family a file, and the list of them by name."""

from collections.abc import Callable
from functools import partial
from typing import Any

from holdfast.errors import ConfigurationError
from holdfast.importance.measures.base import Measure, PathMeasure, SampleMeasure, WeightMeasure
from holdfast.importance.measures.baselines import L2, FineTune, Magnitude
from holdfast.importance.measures.path_integral import SI, SIB, SIU
from holdfast.importance.measures.sampled import MAS, AbsoluteFisher, Fisher, RootFisher
from holdfast.importance.measures.second_moment import SOS, PosteriorPrecision

_BY_NAME: dict[str, Callable[..., Measure]] = {
    "SI": SI,
    "SIU": SIU,
    "SIB": SIB,
    "SOS": SOS,
    "EWC": Fisher,
    "EWC-sampled": partial(Fisher, labels="sampled"),
    "EWC-empirical": partial(Fisher, labels="true"),
    "sqrtFisher": RootFisher,
    "AF": AbsoluteFisher,
    "MAS": MAS,
    "MASX": partial(MAS, dominant=True),
    "MAS-logits": partial(MAS, output="logits"),
    "MASX-logits": partial(MAS, output="logits", dominant=True),
    "posterior": PosteriorPrecision,
    "posterior-scaled": partial(PosteriorPrecision, scaled=True),
    "L2": L2,
    "L2-growing": partial(L2, growing=True),
    "magnitude": Magnitude,
    "fine-tune": FineTune,
}


def measures() -> dict[str, Measure]:
    """Return every measure with its usual settings, by the name that the paper gives it."""
    return {name: make() for name, make in _BY_NAME.items()}


def measure(name: str, **settings: Any) -> Measure:
    """Return a measure by its name in :func:`measures`, with settings of its own.

    >>> measure("SI", damping=0.001)
    SI(damping=0.001, clamp='task')
    """
    if name not in _BY_NAME:
        raise ConfigurationError(f"No measure is called {name!r}; there are {', '.join(_BY_NAME)}.")
    try:
        return _BY_NAME[name](**settings)
    except TypeError as error:
        known = [setting for setting in measures()[name].settings() if setting != "kind"]
        raise ConfigurationError(f"{name}: {error}. Its settings are {', '.join(known)}.") from error


__all__ = [
    "L2",
    "MAS",
    "SI",
    "SIB",
    "SIU",
    "SOS",
    "AbsoluteFisher",
    "FineTune",
    "Fisher",
    "Magnitude",
    "Measure",
    "PathMeasure",
    "PosteriorPrecision",
    "RootFisher",
    "SampleMeasure",
    "WeightMeasure",
    "measure",
    "measures",
]
