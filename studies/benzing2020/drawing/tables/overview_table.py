"""Every method on every benchmark, from what the store has: accuracy, forgetting, memory and time."""

import statistics
from collections.abc import Sequence
from typing import NamedTuple

from anchorhold.errors import ConfigurationError
from anchorhold.tensors.summaries import in_bytes
from anchorhold_lab.analysis import estimate
from anchorhold_lab.experiments import Spec, command_of
from anchorhold_lab.report import Cell, Table, label
from studies.benzing2020.algorithms import (
    ALGORITHMS,
    BOUNDS,
    BY_SAMPLES,
    IN_TWO_FORMS,
    KEEPING,
    OVER_MANY_TASKS,
    PREDICTIONS,
    WINDOWS,
    Algorithm,
)
from studies.benzing2020.drawing.overview_figure import Standing
from studies.benzing2020.drawing.tables.relatives_table import FAILED, accuracy_of, measured, why_left
from studies.benzing2020.findings import Results
from studies.benzing2020.kept_bytes import Kept, kept_bytes
from studies.benzing2020.needed_runs import accuracy_runs
from studies.benzing2020.presets import BENCHMARKS, Benchmark, Preset
from studies.benzing2020.relatives.narrowing import command_for

_COLUMNS = ("benchmark", "method", "accuracy", "forgetting", "kept of old tasks", "seconds a run", "runs")
_CAPTION = (
    "Every method on every benchmark, from the runs that there are: average accuracy over all tasks after the last and "
    "how far accuracies fell, in per cent; what is kept of old tasks when the last one begins, worked out from the "
    "networks' sizes (≤ where it depends on the data); seconds of training of one run, on whatever it was made."
)
_LEFT = (
    "Not run yet. Each command makes the runs of one line, or of an item that has them; where a strength is still "
    f"unknown, it is searched for. {FAILED}"
)
_ITEMS = {
    **{row.name: "forms" for row in (*IN_TWO_FORMS, *BY_SAMPLES, *OVER_MANY_TASKS)},
    **{row.name: "keeping" for row in (*KEEPING, *BOUNDS)},
    **{row.name: "predictions" for row in PREDICTIONS},
    "SOS(2048, halves)": "batch-size",
    "SI, a tenth of the rate": "training-factors",
    "SI, torch's initial weights": "training-factors",
    "SI, long training": "long-training",
    "L2-growing, re-init": "open-searches",
    "SI, long training, searched": "open-searches",
    "SI, SGD": "sgd",
    "SIU, SGD": "sgd",
}
"""Which item has the runs of an algorithm; α's window has one for each benchmark, and Table 1 has the others."""


def item_of(benchmark: Benchmark, algorithm: Algorithm) -> str:
    """Return the name of an item that makes an algorithm's runs."""
    if algorithm in WINDOWS:
        return f"window-{benchmark.lower()}"
    return _ITEMS.get(algorithm.name, "table1")


class Line(NamedTuple):
    """A method on a benchmark."""

    benchmark: str
    method: str
    specs: list[Spec]
    """Its runs; none where its strength is still to be searched for."""
    makes: str
    """The command that makes them, where no single run's would."""

    @property
    def is_bound(self) -> bool:
        """Whether it keeps everything."""
        return bool(self.specs) and self.specs[0].settings.trains != "sequentially"


def every_line(preset: Preset) -> list[Line]:
    """Return all methods on all benchmarks, the paper's first."""
    lines = []
    for benchmark in BENCHMARKS:
        for row in ALGORITHMS.values():
            if benchmark in row.benchmarks:
                command = f"python -m studies.benzing2020 {item_of(benchmark, row)} --preset {preset.name}"
                specs = accuracy_runs(preset, benchmark, row)
                lines.append(Line(preset.stages[benchmark].title, label(row.name), specs, command))
    for study in preset.relatives:
        lines += [
            Line(study.title, row.name, study.runs(row), command_for(preset.name, study, row)) for row in study.rows
        ]
    benchmarks = list(dict.fromkeys(line.benchmark for line in lines))  # of which relatives may have more lines
    return sorted(lines, key=lambda line: benchmarks.index(line.benchmark))


def standings(results: Results) -> list[Standing]:
    """Return how every method stands on every benchmark that it has runs on."""
    found = []
    for line in every_line(results.preset):
        runs = results.finished(line.specs)
        accuracy = accuracy_of(runs)
        if accuracy is not None:
            forgetting = estimate(100 * run.forgetting for run in runs)
            seconds = round(statistics.mean(run.seconds for run in runs), 1)
            about = accuracy, forgetting, kept_bytes(line.specs[0]), seconds
            found.append(Standing(line.benchmark, line.method, *about, line.is_bound))
    return found


def overview_table(found: Sequence[Standing]) -> Table:
    """Return a line for each method and benchmark that has runs."""
    rows = [
        (
            each.benchmark,
            each.method,
            measured(each.accuracy),
            measured(each.forgetting),
            _said(each.kept),
            each.seconds,
            each.accuracy.count,
        )
        for each in found
    ]
    return Table("overview", _CAPTION, _COLUMNS, tuple(rows))


def overview_left(results: Results) -> list[Table]:
    """Return what has no run, with the command that makes it; no table where nothing is left."""
    missing = [line for line in every_line(results.preset) if not results.finished(line.specs)]
    rows: list[tuple[Cell, ...]] = [
        (line.benchmark, line.method, why_left(results, line.specs), _command(line)) for line in missing
    ]
    return [Table("overview-left", _LEFT, ("benchmark", "method", "why", "command"), tuple(rows))] if rows else []


def _command(line: Line) -> str:
    try:
        return command_of(line.specs) if line.specs else line.makes
    except ConfigurationError:
        return line.makes


def _said(kept: Kept | None) -> str | None:
    if kept is None:
        return None
    return ("≤ " * kept.at_most) + in_bytes(kept.bytes) if kept.bytes else "nothing"
