"""Results of many runs in a few lines: mean and standard error over what differs by chance."""

import dataclasses
import math
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from rich.console import Console
from rich.table import Table

from holdfast.lab.analysis.repetitions import standard_error
from holdfast.lab.cli.output import table
from holdfast.lab.cli.progress.labels import duration, shown_value
from holdfast.lab.experiments import Result, Spec
from holdfast.lab.experiments.specs.spec_fields import differing_fields, fields_of
from holdfast.registry import find_name

_ALWAYS = ("scenario", "measure", "strength")
_FIGURES = ("runs", "accuracy %", "forgetting %", "time each")


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


def compare(results: Sequence[Result], by: Sequence[str] = ()) -> list[Line]:
    """Return the results in groups: by the given fields, or else by everything in which they differ but the seed."""
    described = [fields_of(result.spec) for result in results]
    known = dict.fromkeys(name for fields in described for name in fields)
    chosen = [find_name("field of a run", name, known) for name in by if known]
    if not chosen:
        differing = differing_fields(result.spec for result in results)
        chosen = [*_ALWAYS, *(name for name in differing if name not in (*_ALWAYS, "seed"))]
    groups: dict[tuple[Any, ...], dict[Spec, Result]] = {}
    for fields, result in zip(described, results, strict=True):
        # Looking at a run has no part in it: with other eyes on it, it is the same run and counts once.
        groups.setdefault(tuple(fields.get(name) for name in chosen), {}).setdefault(_unwatched(result.spec), result)
    return [Line(dict(zip(chosen, key, strict=True)), tuple(found.values())) for key, found in groups.items()]


def pooled_fields(lines: Iterable[Line]) -> list[str]:
    """Return the names of all fields but the seed in which runs of one line differ."""
    found: dict[str, None] = {}
    for line in lines:
        specs = [_unwatched(result.spec) for result in line.results]
        found |= dict.fromkeys(["scenario"] if len({spec.scenario for spec in specs}) > 1 else [])
        found |= dict.fromkeys(differing_fields(specs))
    return [name for name in found if name != "seed"]


def print_comparison(lines: Sequence[Line], console: Console) -> None:
    """Print a table for each scenario, the most accurate line at the top; beneath, what else the means are over."""
    scenarios: dict[str | None, list[Line]] = {}
    for line in lines:
        by_itself = set(_ALWAYS) <= set(line.key)
        scenarios.setdefault(line.key["scenario"] if by_itself else None, []).append(line)
    for number, (scenario, found) in enumerate(scenarios.items()):
        if number:
            console.print()
        console.print(_fitting(found, scenario, console))
    if pooled := pooled_fields(lines):
        console.print(f"Within a line, runs differ in more than the seed: {', '.join(pooled)}.", soft_wrap=True)


def _unwatched(spec: Spec) -> Spec:
    return dataclasses.replace(spec, watch=(), watch_settings={}, probes=())


def mean_and_error(shares: Sequence[float]) -> str:
    """Return ``97.2 ± 0.1``: mean and standard error in per cent; the error takes two runs or more."""
    mean, error = statistics.mean(shares), standard_error(shares)
    if math.isnan(mean):
        return "-"
    return f"{100 * mean:.1f}" if math.isnan(error) else f"{100 * mean:.1f} ± {100 * error:.1f}"


def _fitting(lines: Sequence[Line], scenario: str | None, console: Console) -> Table:
    """Return a table with a column for each field, or where that is too wide, one in which all are named."""
    keys = [name for name in lines[0].key if scenario is None or name != "scenario"]
    if scenario is not None:  # runs of another scenario may differ in more
        keys = [name for name in keys if name in _ALWAYS or len({line.key[name] for line in lines}) > 1]
    ordered = sorted(lines, key=lambda line: -statistics.mean(line.figures("average_accuracy")))
    wide = table(*keys, *_FIGURES, right=(*_FIGURES, "strength"), title=scenario)
    for line in ordered:
        wide.add_row(*(shown_value(line.key[name]) for name in keys), *_figures(line))
    if console.measure(wide, options=console.options.update(width=10_000)).maximum <= console.width:
        return wide
    narrow = table("", *_FIGURES, right=_FIGURES, wrap=("",), title=scenario)
    for line in ordered:
        own = fields_of(line.results[0].spec)  # without the settings of other measures
        named = [_named(name, line.key[name]) for name in keys if name in own]
        narrow.add_row(", ".join(named), *_figures(line))
    return narrow


def _named(field: str, value: Any) -> str:
    return str(value) if field in ("scenario", "measure") else f"{field} {shown_value(value)}"


def _figures(line: Line) -> tuple[str, ...]:
    seconds = statistics.mean(result.seconds for result in line.results)
    return (
        str(len(line.results)),
        mean_and_error(line.figures("average_accuracy")),
        mean_and_error(line.figures("forgetting")),
        duration(seconds),
    )
