"""What would settle an undecided claim: how many seeds, if mean and scatter stay, and what these cost."""

import dataclasses
import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from anchorhold_lab.analysis.student_t import two_sided_quantile
from anchorhold_lab.experiments import Result, Spec, Store
from studies.benzing2020.claims.claim import Claim
from studies.benzing2020.claims.rule import LEAST_SEEDS, LEVEL, Bound, Measurement
from studies.benzing2020.findings import Results
from studies.benzing2020.presets import Preset

MOST_SEEDS = 100
"""More than these are not proposed: the mean then lies at the limit as far as anybody can tell."""


class Consulted(Results):
    """Results that remember which runs were looked at, by the spec that seeds of a row share."""

    def __init__(
        self, store: Store, preset: Preset, damaged_searches: Mapping[tuple[str, str], str] | None = None
    ) -> None:
        super().__init__(store, preset, damaged_searches)
        self.rows: dict[str, list[Result]] = {}

    def result(self, spec: Spec) -> Result | None:
        """Return a run's result, and remember it."""
        found = super().result(spec)
        if found is not None:
            self.rows.setdefault(dataclasses.replace(spec, seed=0).id, []).append(found)
        return found


@dataclass(frozen=True)
class Settling:
    """What would settle a claim."""

    claim: Claim
    seeds: int | None
    """How many seeds each of its rows would need; ``None`` if more than :data:`MOST_SEEDS`."""
    rows: dict[str, tuple[int, float]]
    """For each row of runs: how many seeds are missing, and what one took in seconds."""
    devices: tuple[str, ...]

    @property
    def minutes(self) -> float:
        """What the missing runs take, by what those that there are took."""
        return math.fsum(missing * seconds for missing, seconds in self.rows.values()) / 60


def settling(claim: Claim, results: Consulted) -> Settling:
    """Return what would settle an undecided claim."""
    results.rows.clear()
    found = claim.statistic(results)
    seeds = seeds_wanted(found, claim.bound)
    rows: dict[str, tuple[int, float]] = {}
    devices: set[str] = set()
    for row, repeated in results.rows.items():
        runs = {run.spec.seed: run for run in repeated}.values()
        missing = max(0, (seeds or len(runs)) - len(runs))
        rows[row] = (missing, statistics.mean(run.seconds for run in runs))
        devices |= {run.device for run in runs if missing}
    return Settling(claim, seeds, rows, tuple(sorted(devices)))


def minutes_together(settled: Iterable[Settling]) -> float:
    """Return what the missing runs of several claims take, each row counted once."""
    rows: dict[str, tuple[int, float]] = {}
    for each in settled:
        for row, wanted in each.rows.items():
            rows[row] = max(rows.get(row, (0, 0.0)), wanted)
    return math.fsum(missing * seconds for missing, seconds in rows.values()) / 60


def seeds_wanted(found: Sequence[Measurement], bound: Bound) -> int | None:
    """Return how many seeds decide a claim, if means and scatter stay as they are; ``None`` if too many do."""
    if any(math.isnan(each.error) for each in found):
        return LEAST_SEEDS
    strict = 1 - (1 - LEVEL) / len(found)
    outside = [each for each in found if bound.outside(each.mean, each.mean) > 0]
    # One that fails is enough; where none does, all have to be shown to hold.
    refuting = [_seeds_for(each, bound.outside(each.mean, each.mean), strict) for each in outside]
    if outside:
        return min((n for n in refuting if n is not None), default=None)
    holding = [_seeds_for(each, bound.inside(each.mean, each.mean), LEVEL) for each in found]
    return None if None in holding else max(n for n in holding if n is not None)


def _seeds_for(found: Measurement, distance: float, level: float) -> int | None:
    """Return how many seeds make an interval that reaches no farther than a distance."""
    scatter = found.error * math.sqrt(found.seeds)
    return next(
        (
            seeds
            for seeds in range(LEAST_SEEDS, MOST_SEEDS + 1)
            if two_sided_quantile(level, seeds - 1) * scatter / math.sqrt(seeds) <= distance
        ),
        None,
    )
