"""Accuracies of algorithms beside the paper's, as tables for readers and as rows for programs."""

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from anchorhold_lab.analysis import Estimate, difference_in_errors
from anchorhold_lab.report import Cell, Measured, Table, label
from studies.benzing2020 import authors_data
from studies.benzing2020.algorithms import Algorithm
from studies.benzing2020.authors_data import Theirs
from studies.benzing2020.drawing.captions import found_strengths
from studies.benzing2020.findings import NotMeasuredError, Results
from studies.benzing2020.needed_runs import accuracy_runs
from studies.benzing2020.presets import BENCHMARKS, PRESETS, Benchmark, Preset
from studies.benzing2020.published import ACCURACIES, Published

PAPER_SEEDS = {"P-MNIST": 3, "CIFAR": 10}
"""How many runs the means of its Table 1 are of."""


@dataclass(frozen=True)
class AccuracyRow:
    """One algorithm on one benchmark."""

    benchmark: Benchmark
    algorithm: str
    ours: Estimate | None
    """In per cent; ``None`` if no run has finished."""
    paper: Published | None
    seconds: float | None
    """Of one run's training; runs side by side share their time."""
    theirs: Theirs | None = None
    """In the authors' own data, where they have it."""

    @property
    def difference(self) -> float | None:
        """How far we lie above the paper, in standard errors that count both sides; ``None`` where one is unknown."""
        if self.ours is None or self.paper is None or self.paper.error is None or math.isnan(self.ours.error):
            return None
        published = Estimate(self.paper.mean, self.paper.error, PAPER_SEEDS[self.benchmark])
        found = difference_in_errors(self.ours, published)
        return found if math.isfinite(found) else None


def accuracy_row(results: Results, benchmark: Benchmark, algorithm: Algorithm) -> AccuracyRow:
    """Return an algorithm's row, as far as its runs have finished."""
    runs = results.finished(accuracy_runs(results.preset, benchmark, algorithm))
    try:
        ours = results.accuracy(benchmark, algorithm.name)
    except NotMeasuredError:
        ours = None
    seconds = statistics.mean(run.seconds for run in runs) if runs else None
    place = benchmark, algorithm.name
    return AccuracyRow(*place, ours, ACCURACIES.get(place), seconds, authors_data.ACCURACIES.get(place))


def on_the_papers_data(preset: Preset, benchmark: Benchmark) -> bool:
    """Whether a benchmark is the paper's own: beside digits, its numbers would mislead."""
    return preset.stages[benchmark].scenario == PRESETS["paper"].stages[benchmark].scenario


def accuracy_table(name: str, caption: str, results: Results, algorithms: Sequence[Algorithm]) -> Table:
    """Return a table with one line an algorithm, and both benchmarks beside each other."""
    stages = results.preset.stages
    used = [b for b in BENCHMARKS if any(b in algorithm.benchmarks for algorithm in algorithms)]
    # A difference from the paper means something only where its own protocol was followed.
    compared = results.preset.follows_the_paper
    numbered = all(algorithm.experiment for algorithm in algorithms)
    columns = ["algorithm", *["No."] * numbered]
    # A column of theirs alone where they have something to say, and of their own benchmarks.
    known = {b for b in used for a in algorithms if compared and (b, a.name) in authors_data.ACCURACIES}
    played = {b for b in used if on_the_papers_data(results.preset, b)}
    for benchmark in used:
        columns += [stages[benchmark].title]
        columns += [f"paper, {PRESETS['paper'].stages[benchmark].title}"] * (benchmark in played)
        columns += [f"{authors_data.NAMED}, {stages[benchmark].title}"] * (benchmark in known)
        columns += [f"distance in errors, {stages[benchmark].title}"] * compared
        columns += [f"runs, {stages[benchmark].title}"]
    lines: list[tuple[Cell, ...]] = []
    for algorithm in algorithms:
        cells: list[Cell] = [label(algorithm.name), *[algorithm.experiment] * numbered]
        for benchmark in used:
            row = accuracy_row(results, benchmark, algorithm)
            cells += [_measured(row.ours)]
            cells += [None if row.paper is None else row.paper.cell()] * (benchmark in played)
            cells += [None if row.theirs is None else row.theirs.cell(2)] * (benchmark in known)
            cells += [row.difference if row.difference is None else Measured(row.difference, decimals=1)] * compared
            cells += [None if row.ours is None else row.ours.count]
        lines.append(tuple(cells))
    return Table(name, caption + found_strengths(results.preset, algorithms), tuple(columns), tuple(lines))


def _measured(found: Estimate | None) -> Measured | None:
    if found is None:
        return None
    return Measured(found.mean, None if math.isnan(found.error) else found.error, decimals=2)
