"""Results of many runs in a few lines: mean and standard error over what differs by chance.

Accuracies on test samples and on samples kept back for validation are two different things: they are never in one
mean, nor in one table.
"""

import math
import statistics
import textwrap
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rich.console import Console

from anchorhold.registry import find_name
from anchorhold_lab.analysis.repetitions import standard_error
from anchorhold_lab.cli.listing.plain_table import Column, PlainTable
from anchorhold_lab.cli.listing.plain_table import Line as TableLine
from anchorhold_lab.cli.progress.labels import duration, shown_value
from anchorhold_lab.experiments.specs.differing import differing
from anchorhold_lab.experiments.store.listing.rows import Row

_ALWAYS = ("scenario", "measure", "strength")
_METHOD = {"form": "diagonal", "holds": (), "compress": 0, "trains": "sequentially", "implicit": False}
"""What protects a run beside its measure, each with what it is where nobody says so."""
_JUDGE = "judge_by"
_FIGURES = ("runs", "accuracy %", "forgetting %", "time each")


@dataclass(frozen=True)
class Line:
    """Runs that differ in nothing that is looked at."""

    key: dict[str, Any]
    judge_by: str
    """Which samples the accuracies of all of them are measured on."""
    rows: tuple[Row, ...]

    def figures(self, name: str) -> list[float]:
        """Return one figure of every run."""
        return [getattr(row.figures, name) for row in self.rows]

    def plain(self) -> dict[str, Any]:
        """Return the line as plain values."""
        return {
            **self.key,
            _JUDGE: self.judge_by,
            "runs": len(self.rows),
            **{
                f"{name}{ending}": figure(self.figures(name))
                for name in ("average_accuracy", "forgetting")
                for ending, figure in (("", statistics.mean), ("_error", standard_error))
            },
            **({"worst_kl": statistics.mean(self.lost)} if self.lost else {}),
        }

    @property
    def lost(self) -> list[float]:
        """What each run has lost of the task of which it has lost most, in nats; none unless all have kept inputs."""
        found = [row.figures.worst_kl for row in self.rows if row.figures is not None]
        kept = [kl for kl in found if kl is not None]
        return kept if len(kept) == len(self.rows) else []


def compare(rows: Iterable[Row], by: Sequence[str] = ()) -> list[Line]:
    """Return runs that have results in groups: by the given fields, or else by everything in which they differ.

    The seed is not counted among those, and what runs are judged by always is.
    """
    finished = [row for row in rows if row.figures is not None and row.setting]
    settings = _settings(finished)
    known = dict.fromkeys(["seed", *(name for setting in settings for name in setting)])
    chosen = [find_name("field of a run", name, known) for name in by if finished]
    if not chosen:
        said = [name for name in _METHOD if any(_is_said(name, setting.get(name)) for setting in settings)]
        chosen = [*dict.fromkeys([*_ALWAYS, *said, *differing(settings)])]
    kinds = {id(setting): (tuple(setting.get(name) for name in chosen), setting[_JUDGE]) for setting in settings}
    seed = chosen.index("seed") if "seed" in chosen else None
    runs = _same_runs(settings)
    groups: dict[tuple[tuple[Any, ...], str], dict[tuple[int, int | None], Row]] = {}
    for row in finished:
        key, judge = kinds[id(row.setting)]
        if seed is not None:
            key = (*key[:seed], row.seed, *key[seed + 1 :])
        # Looking at a run has no part in it: with other eyes on it, it is the same run and counts once.
        groups.setdefault((key, judge), {}).setdefault((runs[id(row.setting)], row.seed), row)
    return [
        Line(dict(zip(chosen, key, strict=True)), judge, tuple(found.values()))
        for (key, judge), found in groups.items()
    ]


def _is_said(name: str, value: Any) -> bool:
    """Whether a field says that a run is protected by more than its measure."""
    return name in _METHOD and bool(value) and value != _METHOD[name]


def pooled_fields(lines: Iterable[Line]) -> list[str]:
    """Return the names of all fields but the seed in which runs of one line differ."""
    found: dict[str, None] = {}
    for line in lines:
        settings = [_unwatched(setting) for setting in _settings(line.rows)]
        found |= dict.fromkeys(["scenario"] if len({setting["scenario"] for setting in settings}) > 1 else [])
        found |= dict.fromkeys(differing(settings))
    return list(found)


def print_comparison(lines: Sequence[Line], console: Console) -> None:
    """Print a table for each scenario and each kind of samples, the most accurate line at the top.

    Beneath them stands what else the means are over.
    """
    tables: dict[tuple[str | None, str], list[Line]] = {}
    for line in lines:
        by_itself = set(_ALWAYS) <= set(line.key)
        tables.setdefault((line.key["scenario"] if by_itself else None, line.judge_by), []).append(line)
    mixed = len({line.judge_by for line in lines}) > 1
    for number, ((scenario, judge), found) in enumerate(tables.items()):
        if number:
            console.print()
        _fitting(found, scenario, _title(scenario, judge, told=mixed or judge != "test"), console).print(console)
    if pooled := pooled_fields(lines):
        told = f"Within a line, runs differ in more than the seed: {', '.join(pooled)}."
        console.out("\n".join(textwrap.wrap(told, console.width, break_on_hyphens=False)), highlight=False)


def mean_and_error(shares: Sequence[float]) -> str:
    """Return ``97.2 ± 0.1``: mean and standard error in per cent; the error takes two runs or more."""
    mean, error = statistics.fmean(shares), standard_error(shares)
    if math.isnan(mean):
        return "-"
    return f"{100 * mean:.1f}" if math.isnan(error) else f"{100 * mean:.1f} ± {100 * error:.1f}"


def _settings(rows: Iterable[Row]) -> list[Mapping[str, Any]]:
    return list({id(row.setting): row.setting for row in rows}.values())


def _unwatched(setting: Mapping[str, Any]) -> dict[str, Any]:
    looking = ("watch", "probes")
    return {name: value for name, value in setting.items() if name not in looking and not name.startswith("watch.")}


def _same_runs(settings: Iterable[Mapping[str, Any]]) -> dict[int, int]:
    """Return a number for each setting, the same for those that only look at runs in different ways."""
    numbers: dict[tuple[tuple[str, Any], ...], int] = {}
    return {id(setting): numbers.setdefault(tuple(_unwatched(setting).items()), len(numbers)) for setting in settings}


def _title(scenario: str | None, judge: str, *, told: bool) -> str:
    samples = f"on {judge} samples" if told else ""
    return ", ".join(part for part in (scenario, samples) if part)


def _fitting(lines: Sequence[Line], scenario: str | None, title: str, console: Console) -> PlainTable:
    """Return a table with a column for each field, or where that is too wide, one in which all are named."""
    keys = [name for name in lines[0].key if scenario is None or name != "scenario"]
    if scenario is not None:  # runs of another scenario may differ in more
        told = {name: {line.key[name] for line in lines} for name in keys}
        keys = [n for n in keys if n in _ALWAYS or len(told[n]) > 1 or any(_is_said(n, value) for value in told[n])]
    ordered = sorted(lines, key=lambda line: -statistics.fmean(line.figures("average_accuracy")))
    lost = any(line.lost for line in lines)
    names = (*_FIGURES[:-1], *(["nats lost"] if lost else []), _FIGURES[-1])
    figures = [Column(name, right=True) for name in names]
    shown = {id(line): _figures(line, lost=lost) for line in ordered}
    wide = PlainTable(
        [*(Column(name, right=name == "strength") for name in keys), *figures],
        [TableLine((*(shown_value(line.key[name]) for name in keys), *shown[id(line)])) for line in ordered],
        title,
    )
    if wide.natural_width() <= console.width:
        return wide
    return PlainTable(
        [Column("", breaks=True), *figures],
        [TableLine((_named(line, keys), *shown[id(line)])) for line in ordered],
        title,
    )


def _named(line: Line, keys: Iterable[str]) -> str:
    own = {*line.rows[0].setting, "seed"}  # without the settings of other measures
    plainly = ("scenario", "measure")
    return ", ".join(
        str(line.key[name]) if name in plainly else f"{name} {shown_value(line.key[name])}"
        for name in keys
        if name in own
    )


def _figures(line: Line, *, lost: bool) -> tuple[str, ...]:
    seconds = statistics.fmean(row.figures.seconds for row in line.rows if row.figures is not None)
    return (
        str(len(line.rows)),
        mean_and_error(line.figures("average_accuracy")),
        mean_and_error(line.figures("forgetting")),
        *([f"{statistics.fmean(line.lost):.2g}" if line.lost else ""] if lost else []),
        duration(seconds),
    )
