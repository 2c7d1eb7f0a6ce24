"""Timing several ways of doing one thing, turn by turn, and reporting them as ratios."""

import gc
import json
import platform
import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from typing import Any

import torch

PACKAGES = ("torch", "backpack-for-pytorch", "nngeometry", "avalanche-lib", "curvlinops-for-pytorch", "kronfluence")


def interleaved(
    cases: Mapping[str, Callable[[], object]],
    repeats: int,
    *,
    before: Callable[[str], object] = lambda _: None,
    clock: Callable[[], float] = time.perf_counter,
) -> dict[str, list[float]]:
    """Return the seconds that each case took, in rounds A B C, B C A, … so that a slow moment hits all alike.

    Each round starts with another case, so that none always finds the caches as one and the same case left them.

    Args:
        cases: what to time, by name.
        repeats: how many rounds.
        before: called with a case's name each time before it is timed.
        clock: what is timed, in seconds.
    """
    for name, case in cases.items():
        before(name)
        case()
    seconds: dict[str, list[float]] = {name: [] for name in cases}
    names = list(cases)
    for turn in range(repeats):
        first = turn % len(names)
        for name in names[first:] + names[:first]:
            before(name)
            gc.collect()
            start = clock()
            cases[name]()
            seconds[name].append(clock() - start)
    return seconds


@dataclass
class Ratio:
    """One ratio, and the target it is held against, if there is one."""

    name: str
    value: float
    target: float | None = None
    at_least: bool = False
    unit: str = ""

    @property
    def met(self) -> bool | None:
        if self.target is None:
            return None
        return self.value >= self.target if self.at_least else self.value <= self.target

    def cells(self) -> tuple[str, str, str, str]:
        target = "" if self.target is None else f"{'≥' if self.at_least else '≤'} {self.target:g}{self.unit}"
        met = {None: "", True: "yes", False: "NO"}[self.met]
        return self.name, f"{self.value:.3g}{self.unit}", target, met


@dataclass
class Report:
    """What one benchmark found."""

    name: str
    title: str
    notes: list[str]
    seconds: dict[str, list[float]]
    """Of every repetition; a median is scaled as ``scales`` says."""
    scales: dict[str, float] = field(default_factory=dict)
    ratios: list[Ratio] = field(default_factory=list)
    details: dict[str, list[str]] = field(default_factory=dict)
    """Further tables for the written report, as lines of Markdown, by their headings."""

    def median(self, case: str) -> float:
        return statistics.median(self.seconds[case]) * self.scales.get(case, 1.0)

    def ratio(self, name: str, above: str, below: str, target: float | None = None, at_least: bool = False) -> None:
        """Add the ratio of two cases' median times."""
        self.ratios.append(Ratio(name, self.median(above) / self.median(below), target, at_least))

    def show(self) -> None:
        """Print what :meth:`write` writes of it, with nothing but torch installed."""
        document = self._document()
        print("\n".join([self.title, "", *_tables(document), *(f"- {note}" for note in self.notes)]))

    def write(self, folder: Path) -> None:
        """Write ``<name>.json``, and ``<name>.md``, which is made of it."""
        folder.mkdir(parents=True, exist_ok=True)
        written = json.dumps({**surroundings(self.name), **self._document()}, indent=2, ensure_ascii=False) + "\n"
        (folder / f"{self.name}.json").write_text(written)
        (folder / f"{self.name}.md").write_text(page_of_report(json.loads(written)))

    def _document(self) -> dict[str, Any]:
        return {
            "title": self.title,
            "notes": self.notes,
            "seconds": {
                case: {"median": self.median(case), "scaled_by": self.scales.get(case, 1.0), "repetitions": times}
                for case, times in self.seconds.items()
            },
            "ratios": [
                {
                    "name": r.name, "value": r.value, "unit": r.unit, "target": r.target, "at_least": r.at_least,
                    "met": r.met,
                }
                for r in self.ratios
            ],
            "details": self.details,
        }  # fmt: skip


def page_of_report(document: dict[str, Any]) -> str:
    """Return the page of a report as it was read from its JSON."""
    first = list(document).index("title")
    lines = [f"# {document['title']}", "", *(f"- {key}: {document[key]}" for key in list(document)[:first]), ""]
    lines += [*(f"- {note}" for note in document["notes"]), "", *_tables(document)]
    for heading, table in document.get("details", {}).items():
        lines += [f"## {heading}", "", *table, ""]
    return "\n".join(lines)


def _tables(document: dict[str, Any]) -> list[str]:
    """Return the ratios and the times, as lines of Markdown."""
    lines: list[str] = []
    if document["ratios"]:
        ratios = [
            Ratio(r["name"], r["value"], r["target"], r["at_least"], r.get("unit", "")) for r in document["ratios"]
        ]
        lines += ["| ratio | measured | target | met |", "|---|---|---|---|"]
        lines += [f"| {' | '.join(ratio.cells())} |" for ratio in ratios] + [""]
    if document["seconds"]:
        lines += ["| case | median time | fastest | slowest |", "|---|---|---|---|"]
        for case, timed in document["seconds"].items():
            times = [time * timed["scaled_by"] for time in timed["repetitions"]]
            shown = (_seconds(time) for time in (statistics.median(times), min(times), max(times)))
            lines.append(f"| {' | '.join((case, *shown))} |")
        lines.append("")
    return lines


def surroundings(name: str) -> dict[str, str]:
    """Return what a reader needs to judge or repeat a measurement."""
    versions = {"python": platform.python_version()}
    for package in PACKAGES:
        try:
            versions[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            versions[package] = "not installed"
    on_gpu = name.startswith("gpu-")
    # One benchmark writes two reports, importance-mlp and importance-cnn.
    command = f"python -m benchmarks {'importance' if name.startswith('importance-') else name}"
    if on_gpu:
        command = f"make bench-gpu PYTHON=python3 BENCH={name.removeprefix('gpu-')}"
    gpu = {"gpu": torch.cuda.get_device_name()} if on_gpu and torch.cuda.is_available() else {}
    return {
        "command": command,
        "date": datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"),
        "versions": ", ".join(f"{package} {version}" for package, version in versions.items()),
        "cpu": _cpu(),
        "threads": str(torch.get_num_threads()),
        **gpu,
    }


def write_rows(
    folder: Path,
    name: str,
    command: str,
    rows: list[dict[str, Any]],
    page: Callable[[list[dict[str, Any]], dict[str, str]], str],
) -> None:
    """Write rows as JSON, and as the page that is made of them, with what they were measured by.

    Args:
        folder: where they go.
        name: that of both files, without an ending.
        command: what makes them.
        rows: what was found.
        page: from rows and surroundings to a page.
    """
    where = {**surroundings(name), "command": command}
    where["versions"] = ", ".join(where["versions"].split(", ")[:2])  # Python and torch: no peer was asked
    (folder / f"{name}.json").write_text(json.dumps({**where, "rows": rows}, indent=2) + "\n")
    (folder / f"{name}.md").write_text(page(rows, where))


def disagreement(found: Mapping[str, torch.Tensor], expected: Mapping[str, torch.Tensor]) -> float:
    """Return the largest difference of any parameter, relative to that parameter's largest value."""
    return max(float((found[name] - value).abs().max() / value.abs().max()) for name, value in expected.items())


def _cpu() -> str:
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.exists():
        for line in cpuinfo.read_text().splitlines():
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    return platform.processor() or platform.machine()


def _seconds(value: float) -> str:
    return f"{value:.3f} s" if value >= 0.1 else f"{value * 1e3:.2f} ms"
