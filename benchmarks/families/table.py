"""The verdicts as a table and as data."""

import json
import math
import platform
import re
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from typing import Any

import torch

from benchmarks.families.verdicts import FALLBACK, MEANINGS, RIGHT, Outcome

TITLE = "Which models, optimisers and trainers it is right for"
PACKAGES = (
    "torch", "transformers", "peft", "accelerate", "lightning", "trl", "schedulefree", "lomo-optim", "galore-torch",
    "pytorch-optimizer",
)  # fmt: skip
NOTES = [
    (
        "Models: Fisher, empirical Fisher, AF and MAS of every parameter (of a regression, MAS on its outputs), in one "
        "batch and with the last sample in a batch of its own, beside the formula: float64, one sample at a time, "
        "gradients by autograd. The difference is the largest of any parameter, relative to its norm. At most 1e-8 is "
        "right; where a model computes in less than double precision, what its rounding explains."
    ),
    (
        "Optimisers: SI and SOS of a few steps, beside −ΣgΔ and the recurrence by hand, with g at the weights before a "
        "step and Δ the whole step; and whether weights with a strong hold stay where they are."
    ),
    "Trainers: the tests that hold them against the same numbers in a plain loop.",
]


@dataclass(frozen=True)
class Row:
    section: str
    name: str
    what: str
    outcome: Outcome


def counts(rows: Iterable[Row]) -> dict[str, int]:
    """Return how often each verdict was given, in the order of the verdicts."""
    found = Counter(row.outcome.verdict for row in rows)
    return {verdict: found[verdict] for verdict in MEANINGS if found[verdict]}


def markdown(rows: list[Row]) -> list[str]:
    """Return the counts and the tables as lines of Markdown."""
    lines = ["| verdict | families | meaning |", "|---|---|---|"]
    lines += [f"| {verdict} | {count} | {MEANINGS[verdict]} |" for verdict, count in counts(rows).items()]
    lines += ["", "## Whatever is not simply right", "", "| family | verdict | why |", "|---|---|---|"]
    others = [row for row in rows if row.outcome.verdict not in (RIGHT, FALLBACK, "tested")]
    lines += [f"| {row.name} | {row.outcome.verdict} | {_told(row.outcome)} |" for row in others]
    section = None
    for row in rows:
        if row.section != section:
            section = row.section
            lines += ["", f"## {section}", "", "| family | what is in it | verdict | difference | how, or why not |"]
            lines += ["|---|---|---|---|---|"]
        outcome = row.outcome
        difference = "" if outcome.difference is None else f"{outcome.difference:.0e}"
        lines.append(f"| {row.name} | {row.what} | {outcome.verdict} | {difference} | {_told(outcome)} |")
    return lines


def write(folder: Path, rows: list[Row]) -> None:
    """Write ``families.md`` and ``families.json``."""
    where = {
        "command": "python -m benchmarks.families",
        "date": datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"),
        "versions": ", ".join(f"{name} {version}" for name, version in _versions().items()),
        "threads": str(torch.get_num_threads()),
    }
    document = {
        **where,
        "title": TITLE,
        "notes": NOTES,
        "counts": counts(rows),
        "rows": [
            {
                "section": row.section,
                "family": row.name,
                "what": row.what,
                "verdict": row.outcome.verdict,
                "difference": _number(row.outcome.difference),
                "notes": list(row.outcome.notes),
            }
            for row in rows
        ],
    }
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "families.json").write_text(json.dumps(document, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
    (folder / "families.md").write_text(page(rows, where), encoding="utf-8")


def page(rows: list[Row], where: dict[str, str]) -> str:
    """Return the page of what was found."""
    lines = [f"# {TITLE}", "", *(f"- {key}: {value}" for key, value in where.items()), ""]
    return "\n".join([*lines, *(f"- {note}" for note in NOTES), "", *markdown(rows), ""])


def read(document: dict[str, Any]) -> list[Row]:
    """Return the rows as ``families.json`` has them."""
    return [
        Row(row["section"], row["family"], row["what"], Outcome(row["verdict"], difference, tuple(row["notes"])))
        for row in document["rows"]
        for difference in [None if row["difference"] is None else float(row["difference"])]
    ]


def _number(value: float | None) -> float | str | None:
    """Return what JSON has a number for, and the word for what it has none for."""
    return value if value is None or math.isfinite(value) else str(value)


def _told(outcome: Outcome) -> str:
    """Return the notes; of measures that are refused alike, the first one's."""
    told: dict[str, str] = {}
    for note in (re.sub(r" at 0x[0-9a-f]+", "", given) for given in outcome.notes):
        told.setdefault(note.split(": ", 1)[-1], note)
    return "; ".join(told.values())


def _versions() -> dict[str, str]:
    found = {"python": platform.python_version()}
    for package in PACKAGES:
        try:
            found[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            found[package] = "not installed"
    return found
