"""The settings that are tried one by one, where what is to be found is more than a strength."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from anchorhold_lab.experiments import Spec, Store, Summary

Run = Callable[[Sequence[Spec], Store], Summary]
"""Makes runs into a store, such as :func:`anchorhold_lab.experiments.execute`."""

SHARES = (0.1, 0.3, 0.5, 0.7, 0.9)
"""ρ of replay."""
DISTILLED = (0.01, 0.1, 0.3, 1.0, 3.0)
"""Strengths of Learning without Forgetting; at temperature 2, as Li & Hoiem 2016 have it."""
DARK = ((0.1, 0.5), (0.1, 1.0), (0.5, 0.5), (0.5, 1.0), (1.0, 1.0))
"""α and β of DER++: of outputs, and of labels."""


def as_changes(way: Mapping[str, Any], found: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return a try as changes of a spec: settings of the one hold that a way has, or else of the run itself, such as c.

    Args:
        way: what the way changes.
        found: what is tried.
    """
    if "holds" not in way:
        return found
    (hold,) = way["holds"]
    return {"hold_settings": {hold: {**way["hold_settings"].get(hold, {}), **found}}}
