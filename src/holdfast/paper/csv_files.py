"""Table 1 and every single run as CSV files, for those who want the numbers alone."""

import csv
import io
import math
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from holdfast.experiments import Spec
from holdfast.files import write_whole
from holdfast.paper.accuracy_table import AccuracyRow, accuracy_row
from holdfast.paper.algorithms import ALGORITHMS
from holdfast.paper.presets import BENCHMARKS
from holdfast.paper.results import Results

TABLE1_COLUMNS = (
    "benchmark",
    "algorithm",
    "mean",
    "stderr",
    "runs",
    "paper_mean",
    "paper_stderr",
    "seconds_per_run",
)
RUNS_COLUMNS = (
    "id",
    "scenario",
    "measure",
    "strength",
    "reinitialise",
    "batch_size",
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


def write_csv_files(results: Results, specs: Sequence[Spec], folder: Path) -> None:
    """Write ``table1.csv`` and ``runs.csv``: accuracies in per cent, those of single tasks with spaces between them."""
    rows = [
        accuracy_row(results, benchmark, algorithm)
        for benchmark in BENCHMARKS
        for algorithm in ALGORITHMS.values()
        if benchmark in algorithm.benchmarks
    ]
    _write(folder / "table1.csv", TABLE1_COLUMNS, (_table1_line(row) for row in rows if row.ours is not None))
    _write(folder / "runs.csv", RUNS_COLUMNS, (_run_line(results, spec) for spec in specs))


def _table1_line(row: AccuracyRow) -> list[Any]:
    ours = row.ours
    assert ours is not None
    published = ("", "") if row.paper is None else (row.paper.mean, "" if row.paper.error is None else row.paper.error)
    seconds = "" if row.seconds is None else f"{row.seconds:.2f}"
    return [
        row.benchmark,
        row.algorithm,
        f"{ours.mean:.3f}",
        _number(ours.error),
        ours.count,
        *published,
        seconds,
    ]


def _run_line(results: Results, spec: Spec) -> list[Any]:
    described = [spec.id, spec.scenario, spec.measure, spec.strength, spec.settings.reinitialise]
    described += [spec.settings.batch_size, spec.tasks, spec.seed, results.store.status(spec.id)]
    result = results.store.get(spec.id)
    if result is None:
        return described + [""] * (len(RUNS_COLUMNS) - len(described))
    single = " ".join(f"{100 * accuracy:.3f}" for accuracy in result.matrix[-1])
    took = f"{result.training_seconds:.2f}"
    return [
        *described,
        f"{100 * result.average_accuracy:.3f}",
        single,
        took,
        result.side_by_side,
        result.device,
        result.commit or "",
    ]


def _number(value: float) -> str:
    return "" if math.isnan(value) else f"{value:.3f}"


def _write(path: Path, columns: Sequence[str], lines: Iterable[Sequence[Any]]) -> None:
    file = io.StringIO()
    writer = csv.writer(file, lineterminator="\n")
    writer.writerow(columns)
    writer.writerows(lines)
    write_whole(path, file.getvalue().encode())
