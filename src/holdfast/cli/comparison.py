"""Results of many runs in a few lines: mean and standard error over what differs by chance."""

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from rich.table import Table

from holdfast.cli.labels import duration
from holdfast.cli.names import find_name
from holdfast.cli.output import table
from holdfast.experiments import Result, Spec
from holdfast.experiments.averages import standard_error


@dataclass(frozen=True)
class Line:
    """Runs that differ in nothing that is looked at."""

    key: dict[str, Any]
    results: tuple[Result, ...]

    def figures(self, name: str) -> list[float]:
        """Return one figure of every run."""
        return [result.metrics[name] for result in self.results]

    def plain(self) -> dict[str, Any]:
        """Return the line as plain values."""
        return {
            **self.key,
            "runs": len(self.results),
            **{
                f"{name}{ending}": figure(self.figures(name))
                for name in ("average_accuracy", "forgetting")
                for ending, figure in (("", statistics.mean), ("_error", standard_error))
            },
        }


def fields_of(spec: Spec) -> dict[str, Any]:
    """Return everything that decides a run, on one level, as values that can be compared."""
    given = spec.to_dict()
    del given["layout"]
    settings = given.pop("settings")
    return {name: _comparable(value) for name, value in {**given, **settings}.items()}


def compare(results: Sequence[Result], by: Sequence[str] = ()) -> list[Line]:
    """Return the results in groups: by the given fields, or else by everything in which they differ but the seed."""
    described = [fields_of(result.spec) for result in results]
    if not described:
        return []
    chosen = [find_name("field of a run", name, described[0]) for name in by] or _telling(described)
    groups: dict[tuple[Any, ...], list[Result]] = {}
    for fields, result in zip(described, results, strict=True):
        groups.setdefault(tuple(fields[name] for name in chosen), []).append(result)
    return [Line(dict(zip(chosen, key, strict=True)), tuple(found)) for key, found in groups.items()]


def comparison_table(lines: Sequence[Line], title: str | None = None) -> Table:
    """Return the lines as a table, the most accurate at the top."""
    keys = list(lines[0].key)
    figures = ("runs", "accuracy %", "forgetting %", "time each")
    shown = table(*keys, *figures, right=(*figures, "strength"), wrap=tuple(keys[3:]), title=title)
    for line in sorted(lines, key=lambda line: -statistics.mean(line.figures("average_accuracy"))):
        seconds = statistics.mean(result.training_seconds / result.side_by_side for result in line.results)
        shown.add_row(
            *(f"{value:g}" if isinstance(value, float) else str(value) for value in line.key.values()),
            str(len(line.results)),
            mean_and_error(line.figures("average_accuracy")),
            mean_and_error(line.figures("forgetting")),
            duration(seconds),
        )
    return shown


def mean_and_error(shares: Sequence[float]) -> str:
    """Return ``97.2 ± 0.1``: mean and standard error in per cent; the error takes two runs or more."""
    mean, error = statistics.mean(shares), standard_error(shares)
    if math.isnan(mean):
        return "-"
    return f"{100 * mean:.1f}" if math.isnan(error) else f"{100 * mean:.1f} ± {100 * error:.1f}"


def _telling(described: Sequence[dict[str, Any]]) -> list[str]:
    """Return the fields by which runs are told apart.

    Measures differ in strength and settings as a matter of course, so a field counts only where it tells apart runs
    that the fields before it do not.
    """
    chosen = ["scenario", "measure"]
    for name in described[0]:
        if name in (*chosen, "seed"):
            continue
        values: dict[tuple[Any, ...], set[Any]] = {}
        for fields in described:
            values.setdefault(tuple(fields[key] for key in chosen), set()).add(fields[name])
        if name == "strength" or any(len(found) > 1 for found in values.values()):
            chosen.append(name)
    return chosen


def _comparable(value: Any) -> Any:
    if isinstance(value, dict):
        return " ".join(f"{key}={_comparable(inner)}" for key, inner in value.items())
    return " ".join(str(inner) for inner in value) if isinstance(value, list) else value
