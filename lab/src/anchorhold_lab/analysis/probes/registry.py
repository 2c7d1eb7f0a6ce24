"""All probes by name, as a spec names them.

``"importances"`` and ``"scatter"`` look at what the measures found, ``"path"`` and ``"noise"`` at the steps of each
task: all of them, or with ``"path:500"`` and ``"noise:200"`` so many; ``"curves"`` likewise at the first task's.
``"lca"`` looks at all steps, and takes a tolerance: ``"lca:1e-5"``. ``"sample-sets:30"`` measures MAS and AF from so
many sets.
"""

from anchorhold.errors import ConfigurationError
from anchorhold_lab.analysis.probes.curves import Curves
from anchorhold_lab.analysis.probes.importances import Importances
from anchorhold_lab.analysis.probes.lca import LossChanges
from anchorhold_lab.analysis.probes.noise import Noise
from anchorhold_lab.analysis.probes.path import Path
from anchorhold_lab.analysis.probes.sample_sets import SampleSets
from anchorhold_lab.analysis.probes.scatter import Scatter
from anchorhold_lab.training import Observer

_OF_STEPS = {"path": Path, "noise": Noise, "curves": Curves}
PROBES = ("importances", "scatter", *_OF_STEPS, "lca", "sample-sets")
"""Their names."""


def make_probe(text: str, *, seed: int) -> tuple[str, Observer]:
    """Return a probe's name and the probe, for one run.

    Args:
        text: the name, and for some a number after a colon: of steps, or a tolerance.
        seed: decides what it samples.
    """
    name, colon, number = text.partition(":")
    if name not in PROBES:
        raise ConfigurationError(f"No probe is called {name!r}; there are {', '.join(PROBES)}.")
    if name in _OF_STEPS:
        if colon and not (number.isascii() and number.isdigit()):
            raise ConfigurationError(f"The probe {text!r}: expected a whole number of steps, such as '{name}:100'.")
        return name, _OF_STEPS[name](seed=seed, size=int(number) if colon else None)
    if name == "sample-sets":
        if colon and not (number.isascii() and number.isdigit()):
            raise ConfigurationError(f"The probe {text!r}: expected a whole number of sets, such as '{name}:30'.")
        return name, SampleSets(seed=seed, sets=int(number)) if colon else SampleSets(seed=seed)
    if name == "lca":
        return name, LossChanges(_tolerance(text, number)) if colon else LossChanges()
    if colon:
        raise ConfigurationError(f"The probe {text!r}: expected {name!r} alone; it looks at tasks, not at steps.")
    return name, Importances() if name == "importances" else Scatter(seed=seed)


def _tolerance(text: str, given: str) -> float:
    try:
        return float(given)
    except ValueError as error:
        raise ConfigurationError(f"The probe {text!r}: expected a tolerance, such as 'lca:1e-5'.") from error
