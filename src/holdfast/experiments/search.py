"""The search for a strength, as in the paper: a grid that extends itself, judged by validation data, then tested."""

import os
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from holdfast.errors import ConfigurationError
from holdfast.experiments.bookkeeping import Summary
from holdfast.experiments.executor import execute
from holdfast.experiments.grid import (
    DECADE,
    FURTHEST_DECADES,
    numbers_around,
    numbers_between,
    numbers_to_try,
    strength_of,
)
from holdfast.experiments.presets import paper_spec
from holdfast.experiments.search_outcome import Point, SearchOutcome
from holdfast.experiments.search_runs import PointRuns
from holdfast.experiments.spec import Spec
from holdfast.experiments.store import Store, as_store
from holdfast.importance.measures import FineTune

TEST_SEEDS = range(3)
SEARCH_SEEDS = range(1000, 1001)
"""Far from those that people take for tests, so that no run is judged by what it was chosen for."""

_USUAL = (0.001, 1000.0)
"""The range of powers of ten for a measure about whose strength nothing is known."""


def search(
    scenario: str,
    measure: str,
    store: Store | str | os.PathLike[str],
    *,
    low: float | None = None,
    high: float | None = None,
    reinitialise: bool | None = None,
    seeds: Sequence[int] = TEST_SEEDS,
    search_seeds: Sequence[int] = SEARCH_SEEDS,
    run: Callable[[Sequence[Spec], Store], Summary] = execute,
    **changes: Any,
) -> SearchOutcome:
    """Find the strength c of a measure, and whether to re-initialise; then test them with fresh seeds.

    Strengths are a·10ⁱ with a of 1, 2 or 5. Where the best lies at an end of those tried, the grid is extended by a
    decade at that end, up to three times; with re-initialisation and without are searched each for itself. Every run
    is in the store, so the same search goes on where it was stopped, and costs nothing once it is done.

    >>> search("permuted-digits", "SI", Store("results"), search_seeds=range(1000, 1003), epochs=3)

    Args:
        scenario: a name in :data:`~holdfast.experiments.SCENARIOS`.
        measure: a name in :func:`holdfast.measures`.
        store: where results are, and go to; or its folder.
        low: the smallest strength to begin with. By default the grid begins with a decade on either side of the
            strength in :func:`~holdfast.experiments.paper_spec`, or, where there is none, with the powers of ten from
            0.001 to 1000, and looks more closely around the best.
        high: the largest one.
        reinitialise: whether weights are drawn anew before every task; both are tried by default.
        seeds: those of the test.
        search_seeds: those of the search, by whose mean accuracy on validation data the choice is made.
        run: makes runs; ``functools.partial(execute, device="cpu")`` is one with another device.
        changes: any field of :class:`Spec` or of its settings that is to be different from ``paper_spec``'s.
    """
    measure = _checked_measure(scenario, measure, seeds, search_seeds, changes)
    start = _start(low, high, _known_strength(scenario, measure, changes))
    grids = [_Grid(choice, start) for choice in ((False, True) if reinitialise is None else (reinitialise,))]
    runs = PointRuns(partial(paper_spec, scenario, measure, **changes), as_store(store), run)
    while asked := [(grid, number) for grid in grids for number in grid.wanted()]:
        strengths = [(strength_of(number), grid.reinitialise) for grid, number in asked]
        for (grid, number), point in zip(asked, runs.points(strengths, search_seeds, "validation"), strict=True):
            if point is not None:
                grid.points[number] = point
        if runs.stopped:
            break
    tried = sorted((point for grid in grids for point in grid.points.values()), key=lambda p: (p.strength, p.rank))
    found = partial(SearchOutcome, scenario, measure, tuple(tried))
    if runs.stopped:
        return found(None, f"The search was stopped after {len(tried)} points of the grid.", stopped=runs.stopped)
    better = min(grids, key=lambda grid: grid.best.rank)
    choice = better.best
    if not choice.finished:
        return found(None, f"All runs of the {len(tried)} points of the grid failed. {runs.last_failure}")
    (test,) = runs.points([(choice.strength, choice.reinitialise)], seeds, "test")
    return found(choice, f"{choice} is the best of {len(tried)} points. {better.ends()}".strip(), test, runs.stopped)


class _Grid:
    """What was tried with re-initialisation, or without."""

    def __init__(self, reinitialise: bool, start: range) -> None:
        self.reinitialise = reinitialise
        self.start = start
        self.points: dict[int, Point] = {}
        """By their numbers on the grid."""

    @property
    def best(self) -> Point:
        return self.points[self._best]

    def wanted(self) -> Sequence[int]:
        """Return what is to be tried next."""
        return numbers_to_try(self.points, self._best, self.start) if self.points else self.start

    def ends(self) -> str:
        """Say so if the best point lies at an end, though the grid was extended as far as it goes."""
        where = {min(self.points): "lower", max(self.points): "upper"}.get(self._best)
        if where is None:
            return ""
        return (
            f"It lies at the {where} end of the grid, which was extended by {FURTHEST_DECADES} decades: search from "
            "there on to see whether accuracy rises further."
        )

    @property
    def _best(self) -> int:
        return min(self.points, key=lambda number: self.points[number].rank)


def _checked_measure(
    scenario: str, measure: str, seeds: Sequence[int], search_seeds: Sequence[int], changes: Mapping[str, Any]
) -> str:
    """Return the measure's name, or say what makes no sense before anything runs."""
    decided = sorted({"strength", "seed", "judge_by"} & set(changes))
    if decided:
        raise ConfigurationError(f"search was given {', '.join(decided)}, which it decides itself; leave it out.")
    spec = paper_spec(scenario, measure, **changes, strength=1.0, judge_by="validation")
    if isinstance(spec.make_measure(), FineTune):
        raise ConfigurationError(
            f"{measure} has no strength to search for, since it protects nothing; expected a measure that does. Run it "
            "as it is."
        )
    if not seeds or not search_seeds or set(seeds) & set(search_seeds):
        raise ConfigurationError(
            f"seeds={list(seeds)} and search_seeds={list(search_seeds)}: expected one or more of each, and none in "
            "both, so that the test is of runs that had no part in the choice."
        )
    return spec.measure


def _known_strength(scenario: str, measure: str, changes: Mapping[str, Any]) -> float | None:
    """Return the strength that is usual for a measure, if there is one; everything else has been checked before."""
    try:
        return paper_spec(scenario, measure, **changes).strength
    except ConfigurationError:
        return None


def _start(low: float | None, high: float | None, known: float | None) -> range:
    """Return the strengths to begin with, by their numbers on the grid."""
    usual = numbers_between(*_USUAL)[::DECADE] if known is None else numbers_around(known)
    if low is None and high is None:
        return usual
    first, last = strength_of(usual[0]), strength_of(usual[-1])
    low = min(first, high or first) if low is None else low
    return numbers_between(low, max(last, low) if high is None else high)
