"""What ways of keeping other than by importance keep, as a table: with what each stores, and what was found for it."""

from collections.abc import Sequence

from anchorhold_lab.experiments import Spec
from anchorhold_lab.report import Cell, Table, label
from studies.benzing2020.algorithms import Algorithm
from studies.benzing2020.drawing.tables.form_table import best_of_table1, kept_cells
from studies.benzing2020.findings import Results
from studies.benzing2020.needed_runs import accuracy_runs
from studies.benzing2020.presets import Benchmark

_COLUMNS = ("method", "accuracy", "first task", "last task", "stores", "found", "runs")
_STORES = {
    "fine-tune": "nothing",
    "EWC, tried alike": "importances, old weights",
    "LwF": "old weights",
    "joint training": "all data",
    "training anew": "a network a task",
}
"""What is stored of old tasks, where it is not so many samples."""


def keeping_table(
    name: str, caption: str, results: Results, benchmark: Benchmark, algorithms: Sequence[Algorithm]
) -> Table:
    """Return a line for each algorithm, and one for the best of Table 1."""
    rows = [_row(results, benchmark, algorithm) for algorithm in algorithms]
    best = best_of_table1(results, benchmark)
    called = f"best of Table 1: {label(best)}" if best else "best of Table 1"
    first, *others = kept_cells(results, benchmark, best) if best else [None] * 4
    rows.append((called, first, *others[:2], None, None, others[2]))
    return Table(name, caption, _COLUMNS, tuple(rows))


def _row(results: Results, benchmark: Benchmark, algorithm: Algorithm) -> tuple[Cell, ...]:
    *kept, count = kept_cells(results, benchmark, algorithm.name)
    specs = accuracy_runs(results.preset, benchmark, algorithm)
    if count is None or not specs:
        return (label(algorithm.name), *[None] * (len(_COLUMNS) - 1))
    stores = _STORES.get(algorithm.name) or _stored(specs[0])
    return (label(algorithm.name), *kept, stores, _found(specs[0]), count)


def _stored(spec: Spec) -> str:
    (settings,) = spec.hold_settings.values()
    outputs = " with outputs" * ("DER++" in spec.holds)
    return f"{settings['source']:,} samples{outputs}"


def _found(spec: Spec) -> str | None:
    """Return the settings that were searched for."""
    if spec.strength:
        return f"c = {spec.strength:g}"
    searched = ("share", "strength", "alpha", "beta")
    found = [(name, value) for each in spec.hold_settings.values() for name, value in each.items() if name in searched]
    return ", ".join(f"{name} {value:g}" for name, value in found) or None
