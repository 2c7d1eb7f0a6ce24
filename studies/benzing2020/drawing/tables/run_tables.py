"""Table 1 and every single run as CSV files, for those who want the numbers alone."""

import csv
import io
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

from anchorhold_lab.experiments import Spec
from studies.benzing2020.algorithms import ALGORITHMS
from studies.benzing2020.drawing.tables.accuracy_table import AccuracyRow, accuracy_row
from studies.benzing2020.findings import Results
from studies.benzing2020.needed_runs import accuracy_runs
from studies.benzing2020.presets import BENCHMARKS, Preset

TABLE1_COLUMNS = (
    "benchmark",
    "algorithm",
    "mean",
    "stderr",
    "runs",
    "paper_mean",
    "paper_stderr",
    "seconds_per_run",
    "authors_data",
)
RUNS_COLUMNS = (
    "id",
    "algorithm",
    "scenario",
    "measure",
    "strength",
    "alpha",
    "reinitialise",
    "epochs",
    "later_epochs",
    "batch_size",
    "optimizer",
    "precision",
    "watch",
    "tasks",
    "seed",
    "status",
    "average_accuracy",
    "accuracies",
    "seconds",
    "side_by_side",
    "device",
    "commit",
)
FORM_COLUMNS = ("samples", "form", "form_settings", "hidden")
"""Further columns, where some run keeps its importance in another form than the diagonal."""

HOLD_COLUMNS = ("trains", "holds", "hold_settings")
"""Further ones, where something else keeps old tasks in some run, or nothing has to."""

KIND_COLUMNS = ("incremental", "kept", "consolidate")
"""Further ones, where some run is of another kind, sets samples aside, or is told of no ends of tasks."""

AVERAGE_COLUMNS = ("beta2", "window", "skip")
"""Further ones, where the running average of some run reaches less far than usual."""

COMPRESS_COLUMNS = ("compress",)
"""Further, where some run has a second network that tells of each task."""

RATE_COLUMNS = ("learning_rate",)
"""Further, where runs have either of these, since they differ in it too."""


def csv_files(results: Results, specs: Sequence[Spec]) -> dict[str, bytes]:
    """Return ``table1.csv`` and ``runs.csv``: accuracies in per cent, those of single tasks with spaces between."""
    rows = [
        (algorithm, accuracy_row(results, benchmark, algorithm))
        for benchmark in BENCHMARKS
        for algorithm in ALGORITHMS.values()
        if benchmark in algorithm.benchmarks
    ]
    names = {
        spec.id: algorithm.name
        for algorithm, row in reversed(rows)  # a run of two rows goes by the first one's name
        for spec in accuracy_runs(results.preset, row.benchmark, algorithm)
    }
    lines = (_table1_line(results.preset, row) for _, row in rows if row.ours is not None)
    runs = [_run_line(results, spec, names.get(spec.id, "")) for spec in specs]
    columns: tuple[str, ...] = RUNS_COLUMNS
    for further, cells in _further_columns(specs):
        columns = (*columns, *further)
        runs = [[*line, *cells(spec)] for line, spec in zip(runs, specs, strict=True)]
    return {"table1.csv": _csv(TABLE1_COLUMNS, lines), "runs.csv": _csv(columns, runs)}


def _further_columns(specs: Sequence[Spec]) -> Iterator[tuple[tuple[str, ...], Callable[[Spec], list[Any]]]]:
    """Yield the columns that some of these runs need, with what makes a run's cells."""
    if any(spec.form != "diagonal" for spec in specs):
        yield FORM_COLUMNS, _form_cells
    if any(spec.holds or spec.settings.trains != "sequentially" for spec in specs):
        yield HOLD_COLUMNS, _hold_cells
    kinds = any(spec.incremental or spec.kept or spec.settings.consolidate != "tasks" for spec in specs)
    if kinds:
        yield KIND_COLUMNS, _kind_cells
    if any(spec.settings.compress for spec in specs):
        yield COMPRESS_COLUMNS, lambda spec: [spec.settings.compress]
    averages = any(map(unusual_average, specs))
    if averages:
        yield AVERAGE_COLUMNS, _average_cells
    if kinds or averages:
        yield RATE_COLUMNS, lambda spec: [spec.settings.learning_rate]


def unusual_average(spec: Spec) -> dict[str, float]:
    """Return the settings of a running average where they are not the usual ones."""
    usual = {"beta2": 0.999, "window": None, "skip": 0}
    given = {name: spec.measure_settings.get(name, value) for name, value in usual.items()}
    return {name: value for name, value in given.items() if value != usual[name]}


def _table1_line(preset: Preset, row: AccuracyRow) -> list[Any]:
    ours, paper = row.ours, row.paper
    assert ours is not None
    # The paper's numbers are of its own benchmarks; a bound is no mean.
    if not preset.follows_the_paper or (paper is not None and paper.relation):
        paper = None
    theirs = row.theirs if preset.follows_the_paper else None
    return [
        row.benchmark if preset.follows_the_paper else preset.stages[row.benchmark].title,
        row.algorithm,
        f"{ours.mean:.3f}",
        _number(ours.error),
        ours.count,
        "" if paper is None else paper.mean,
        "" if paper is None or paper.error is None else paper.error,
        "" if row.seconds is None else f"{row.seconds:.2f}",
        "" if theirs is None else theirs.value,
    ]


def _run_line(results: Results, spec: Spec, algorithm: str) -> list[Any]:
    settings, alpha = spec.settings, spec.measure_settings.get("alpha")
    described = [
        *(spec.id, algorithm, spec.scenario, spec.measure, spec.strength, "" if alpha is None else alpha),
        *(settings.reinitialise, settings.epochs, settings.later_epochs or "", settings.batch_size, settings.optimizer),
        *(spec.precision, " ".join(spec.watch), spec.tasks, spec.seed, results.status(spec)),
    ]
    result = results.result(spec)
    if result is None:
        return described + [""] * (len(RUNS_COLUMNS) - len(described))
    single = " ".join(f"{100 * accuracy:.3f}" for accuracy in result.matrix[-1])
    return [
        *(*described, f"{100 * result.average_accuracy:.3f}", single, f"{result.seconds:.2f}"),
        *(result.side_by_side, result.device, result.commit or ""),
    ]


def _form_cells(spec: Spec) -> list[Any]:
    settings = " ".join(f"{name}={value}" for name, value in spec.form_settings.items())
    return [spec.settings.samples or "", spec.form, settings, "-".join(map(str, spec.hidden or ()))]


def _hold_cells(spec: Spec) -> list[Any]:
    settings = [f"{name}.{key}={value}" for name, each in spec.hold_settings.items() for key, value in each.items()]
    return [spec.settings.trains, " ".join(spec.holds), " ".join(settings)]


def _kind_cells(spec: Spec) -> list[Any]:
    consolidate = spec.settings.consolidate
    return [spec.incremental or "", spec.kept or "", consolidate if consolidate != "tasks" else ""]


def _average_cells(spec: Spec) -> list[Any]:
    known = (spec.measure_settings.get(name) for name in AVERAGE_COLUMNS)
    return ["" if value is None else value for value in known]


def _number(value: float) -> str:
    return "" if math.isnan(value) else f"{value:.3f}"


def _csv(columns: Sequence[str], lines: Iterable[Sequence[Any]]) -> bytes:
    file = io.StringIO()
    writer = csv.writer(file, lineterminator="\n")
    writer.writerow(columns)
    writer.writerows(lines)
    return file.getvalue().encode()
