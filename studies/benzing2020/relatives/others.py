"""What else the library has, so that every measure, form and hold stands in some study: variants of EWC and its forms.

They are run by domain, where one head serves all tasks: with a head a task, little is forgotten by any.
"""

from collections.abc import Mapping
from typing import Any

from studies.benzing2020.relatives.study import Row, Settings

_OTHERS: dict[str, tuple[str, dict[str, Any]]] = {
    "EWC, sampled labels": ("EWC-sampled", {}),
    "EWC, true labels": ("EWC-empirical", {}),
    "MASX on logits": ("MASX-logits", {}),
    "posterior precision": ("posterior", {}),
    "posterior precision, scaled": ("posterior-scaled", {}),
    "rotated EWC": ("EWC", {"form": "rotated"}),
    "rotated EWC, 16 bits": ("EWC", {"form": "rotated16"}),
    "Kronecker EWC": ("EWC", {"form": "kronecker"}),
    "Kronecker EWC, 16 bits": ("EWC", {"form": "kronecker16"}),
    "low-rank EWC": ("EWC", {"form": "lowrank"}),
    "SOLA": ("EWC", {"form": "lowrank", "anchor": "mean", "gradient_term": True}),
    "dense EWC": ("EWC", {"form": "dense", "hidden": (20,)}),
}
_DIFFERS = {"dense EWC": "20 hidden units, since its matrix has the square of all weights"}


def other_rows(tries: Mapping[str, tuple[Settings, ...]], seeds: int | None = None) -> tuple[Row, ...]:
    """Return those that something is tried for; a single try is what they have.

    Args:
        tries: what is tried, by the name of the row.
        seeds: how many runs each has, where it is another number than the study's.
    """
    found = []
    for name, given in tries.items():
        measure, own = _OTHERS[name]
        changes = {"reinitialise": False, **own, **(given[0] if len(given) == 1 else {})}
        tried = given if len(given) > 1 else ()
        found.append(Row(name, measure, changes, differs=_DIFFERS.get(name, ""), seeds=seeds, tried=tried))
    return tuple(found)
