"""A part of the studies: some of them, and of each some of its methods."""

import dataclasses
import shlex
from collections.abc import Sequence

from anchorhold.errors import ConfigurationError
from anchorhold.registry import find_name
from studies.benzing2020.relatives.study import Row, Study


def some_of(studies: Sequence[Study], names: Sequence[str], methods: Sequence[str]) -> tuple[Study, ...]:
    """Return those of some names, each with those of its methods that are asked for; all where none is named.

    A method that none of them has is refused.
    """
    asked = {find_name("study", name, [study.name for study in studies]) for name in names}
    chosen = [study for study in studies if not asked or study.name in asked]
    if not chosen:
        raise ConfigurationError("The preset has no studies to choose from; expected one that has.")
    if not methods:
        return tuple(chosen)
    known = dict.fromkeys(row.name for study in chosen for row in study.rows)
    wanted = {find_name("method", name, known) for name in methods}
    narrowed = [(study, tuple(row for row in study.rows if row.name in wanted)) for study in chosen]
    return tuple(dataclasses.replace(study, rows=rows) for study, rows in narrowed if rows)


def command_for(preset: str, study: Study, row: Row) -> str:
    """Return the command that tries what a method may have, and then makes its runs."""
    program = ["python", "-m", "studies.benzing2020", "relatives"]
    return shlex.join([*program, "--preset", preset, "--study", study.name, "--method", row.name])
