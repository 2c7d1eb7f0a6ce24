"""All families, of all kinds, and the verdicts on those that are wanted."""

from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import Any, NamedTuple

from benchmarks.families import measuring, models, optimisers, trainers
from benchmarks.families.family import Family
from benchmarks.families.table import Row
from benchmarks.families.verdicts import Outcome, attempted


class Trial(NamedTuple):
    family: Family[Any]
    judge: Callable[[Callable[[], Any]], Outcome]


def trials() -> list[Trial]:
    """Return every family with what judges it."""
    kinds = (
        (models.sections(), measuring.judge),
        (optimisers.sections(), optimisers.judge),
        (trainers.sections(), trainers.judge),
    )
    return [Trial(family, judge) for sections, judge in kinds for section in sections for family in section.families]


def wanted(names: Iterable[str]) -> list[Trial]:
    """Return the families that have one of these in their name or their section's; all without names."""
    parts = [name.lower() for name in names]
    return [
        trial
        for trial in trials()
        if not parts or any(part in f"{trial.family.section} {trial.family.name}".lower() for part in parts)
    ]


def rows_of(chosen: Iterable[Trial]) -> Iterator[Row]:
    """Yield the verdicts one by one."""
    for family, judge in chosen:
        yield Row(family.section, family.name, family.what, attempted(partial(judge, family.make)))
