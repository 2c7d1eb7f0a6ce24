"""In what runs differ, told from their fields alone."""

from collections.abc import Iterable, Mapping
from typing import Any


def differing(runs: Iterable[Mapping[str, Any]]) -> list[str]:
    """Return the names of all fields in which runs of one scenario differ, from the fields of each.

    A measure's own settings count where runs of that measure differ in them; two measures have different ones as a
    matter of course.
    """
    seen: dict[str, dict[tuple[str, ...], set[Any]]] = {}
    for fields in runs:
        scenario, measure = (fields["scenario"],), (fields["scenario"], fields["measure"])
        for name, value in fields.items():
            among = measure if name.startswith("measure.") else scenario
            seen.setdefault(name, {}).setdefault(among, set()).add(value)
    return [name for name, groups in seen.items() if any(len(values) > 1 for values in groups.values())]
