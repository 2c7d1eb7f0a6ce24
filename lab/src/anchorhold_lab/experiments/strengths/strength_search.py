"""The search for a strength, as in the paper: a grid that extends itself, judged by validation data, then tested."""

import os
from collections.abc import Callable, Mapping, Sequence
from functools import cache, partial
from typing import Any

from anchorhold.errors import ConfigurationError, shortened
from anchorhold.measures import FineTune
from anchorhold_lab.experiments.running.bookkeeping import Summary
from anchorhold_lab.experiments.running.executor import execute
from anchorhold_lab.experiments.specs.paper_specs import paper_spec
from anchorhold_lab.experiments.specs.spec import Spec
from anchorhold_lab.experiments.store.store import Store, as_store
from anchorhold_lab.experiments.strengths.search_outcome import Point, SearchOutcome
from anchorhold_lab.experiments.strengths.search_runs import PointRuns
from anchorhold_lab.experiments.strengths.strength_grid import (
    DECADE,
    numbers_around,
    numbers_between,
    numbers_to_try,
    strength_of,
)

TEST_SEEDS = range(3)
SEARCH_SEEDS = range(1000, 1003)
"""Far from those that people take for tests, so that no run is judged by what it was chosen for."""
FINALISTS = 4
"""How many points are judged by all search seeds; the others by the first alone."""

_USUAL = (0.001, 1000.0)
"""The range of powers of ten for a measure about whose strength nothing is known."""
_USUAL_RELATIVE = (0.0001, 10.0)
"""That of relative strengths: where the best ones were, on digits and on the paper's benchmarks, but for two."""


def search(
    scenario: str,
    measure: str,
    store: Store | str | os.PathLike[str],
    *,
    low: float | None = None,
    high: float | None = None,
    coarse: bool = False,
    relative: bool = False,
    reinitialise: bool | None = None,
    seeds: Sequence[int] = TEST_SEEDS,
    search_seeds: Sequence[int] = SEARCH_SEEDS,
    run: Callable[[Sequence[Spec], Store], Summary] = execute,
    **changes: Any,
) -> SearchOutcome:
    """Find the strength c of a measure, and whether to re-initialise; then test them with fresh seeds.

    Strengths are a·10ⁱ with a of 1, 2 or 5. Where the best lies at an end of those tried, the grid is extended by a
    decade at that end, up to three times; with re-initialisation and without are searched each for itself. All this is
    judged by the first search seed alone. The four points that do best with it, over both, are then repeated with the
    other search seeds, and the one with the best mean over all of them is chosen.

    Every run is in the store, so the same search goes on where it was stopped, and costs nothing once it is done.

    >>> search("permuted-digits", "SI", Store("results"), epochs=3).choice

    Args:
        scenario: a name in :data:`~anchorhold_lab.experiments.SCENARIOS`.
        measure: a name in :func:`~anchorhold.measures.default_measures`.
        store: where results are, and go to; or its folder.
        low: the smallest strength to begin with. By default the grid begins with a decade on either side of the
            strength in :func:`~anchorhold_lab.experiments.paper_spec`, or, where there is none, with the powers of ten
            from 0.001 to 1000, and looks more closely around the best.
        high: the largest one.
        coarse: whether to begin with every third strength of the range alone, as with powers of ten, and to look more
            closely around the best.
        relative: whether to search over relative strengths s, in units of the mean importance of a weight, with
            ``low`` and ``high`` in them too; by default from the powers of ten from 0.0001 to 10 on.
        reinitialise: whether weights are drawn anew before every task; both are tried by default.
        seeds: those of the test.
        search_seeds: those of the search, by whose mean accuracy on validation data the choice is made; the first one
            decides which points take part in it. With a single one, it decides alone.
        run: makes runs; ``functools.partial(execute, device="cpu")`` is one with another device.
        changes: any field of :class:`Spec` or of its settings that is to be different from ``paper_spec``'s.
    """
    measure = _checked_measure(scenario, measure, seeds, search_seeds, changes)
    known = None if relative else _known_strength(scenario, measure, changes)
    start = _start(low, high, known, _USUAL_RELATIVE if relative else _USUAL)
    start = start[::DECADE] if coarse else start
    grids = [_Grid(choice, start) for choice in ((False, True) if reinitialise is None else (reinitialise,))]
    # Points that are judged again, by more seeds, ask for the runs of the first seed once more.
    make = cache(partial(paper_spec, scenario, measure, **changes))
    runs = PointRuns(make, as_store(store), run, relative=relative)
    while not runs.stopped and (asked := [(grid, number) for grid in grids for number in grid.wanted()]):
        _judge(asked, runs, search_seeds[:1])
    finalists, where = _finalists(grids), "on its grid"
    if len(search_seeds) > 1 and finalists and not runs.stopped:
        where = f"while it repeated the best {len(finalists)}"
        _judge(finalists, runs, search_seeds)
    tried = sorted((point for grid in grids for point in grid.points.values()), key=lambda p: (p.strength, p.rank))
    found = partial(SearchOutcome, scenario, measure, tuple(tried))
    if runs.stopped:
        return found(None, f"The search was stopped {where}, with {len(tried)} points tried.", stopped=runs.stopped)
    if not finalists:
        return found(None, f"All runs of the {len(tried)} points of the grid failed. {runs.last_failure}")
    better, number = min(finalists, key=lambda finalist: _rank(*finalist))
    choice = better.points[number]
    why = f"{choice} is the best of {len(tried)} points"
    if len(search_seeds) > 1:
        why += f", by the mean over {len(search_seeds)} seeds of the {len(finalists)} that did best with the first"
    (test,) = runs.points([(choice.strength, choice.reinitialise)], seeds, "test")
    return found(choice, f"{why}. {better.ends(number)}".strip(), test, runs.stopped)


class _Grid:
    """What was tried with re-initialisation, or without."""

    def __init__(self, reinitialise: bool, start: range) -> None:
        self.reinitialise = reinitialise
        self.start = start
        self.points: dict[int, Point] = {}
        """By their numbers on the grid."""

    def wanted(self) -> Sequence[int]:
        """Return what is to be tried next."""
        if not self.points:
            return self.start
        best = min(self.points, key=lambda number: self.points[number].rank)
        return numbers_to_try(self.points, best, self.start)

    def ends(self, number: int) -> str:
        """Say so if a point lies at an end: the grid goes no further, or the first seed saw no reason to extend it."""
        lowest, highest = min(self.points), max(self.points)
        if number not in (lowest, highest):
            return ""
        where, beyond = ("lower", self.start[0] - lowest) if number == lowest else ("upper", highest - self.start[-1])
        decades = beyond // DECADE
        extended = f", which was extended by {decades} decade{'s' * (decades > 1)}" if decades else ""
        return (
            f"It lies at the {where} end of the grid{extended}: search from there on to see whether accuracy rises "
            "further."
        )


def _judge(asked: Sequence[tuple[_Grid, int]], runs: PointRuns, seeds: Sequence[int]) -> None:
    """Make the runs of some points and write down what came out; where runs are missing, what was there stays."""
    strengths = [(strength_of(number), grid.reinitialise) for grid, number in asked]
    for (grid, number), point in zip(asked, runs.points(strengths, seeds, "validation"), strict=True):
        if point is not None:
            grid.points[number] = point


def _finalists(grids: Sequence[_Grid]) -> list[tuple[_Grid, int]]:
    """Return the best points over all grids; one that failed cannot be chosen, so it is not worth repeating."""
    finished = [(grid, number) for grid in grids for number, point in grid.points.items() if point.finished]
    return sorted(finished, key=lambda finalist: _rank(*finalist))[:FINALISTS]


def _rank(grid: _Grid, number: int) -> tuple[int, float, float, bool]:
    return grid.points[number].rank


def _checked_measure(
    scenario: str, measure: str, seeds: Sequence[int], search_seeds: Sequence[int], changes: Mapping[str, Any]
) -> str:
    """Return the measure's name, or say what makes no sense before anything runs."""
    decided = sorted({"strength", "relative_strength", "tolerance", "seed", "judge_by"} & set(changes))
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
            f"seeds={shortened(list(seeds))} and search_seeds={shortened(list(search_seeds))}: expected one or more of "
            "each, and none in both, so that the test is of runs that had no part in the choice."
        )
    return spec.measure


def _known_strength(scenario: str, measure: str, changes: Mapping[str, Any]) -> float | None:
    """Return the strength that is usual for a measure, if there is one; everything else has been checked before."""
    try:
        return paper_spec(scenario, measure, **changes).strength
    except ConfigurationError:
        return None


def _start(low: float | None, high: float | None, known: float | None, between: tuple[float, float]) -> range:
    """Return the strengths to begin with, by their numbers on the grid."""
    usual = numbers_between(*between)[::DECADE] if known is None else numbers_around(known)
    if low is None and high is None:
        return usual
    first, last = strength_of(usual[0]), strength_of(usual[-1])
    low = min(first, high or first) if low is None else low
    return numbers_between(low, max(last, low) if high is None else high)
