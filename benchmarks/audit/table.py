"""The audit as a table and as data."""

import json
import math
from pathlib import Path

from benchmarks.audit.rows import REPRODUCED, Row
from benchmarks.audit.rwalk_section import VersionRow, as_data, section
from benchmarks.harness import surroundings

TITLE = "What other libraries compute, beside the definitions"
NOTES = [
    (
        "Digits of 8×8 pixels, 1024 of them, on a 64-48-24-10 network with ReLU, 4546 weights, in float32. The"
        " definitions are computed in float64."
    ),
    (
        "EWC and MAS measure a network that has been trained to 98.8 % before; libraries that measure at the end of"
        " their own training train it with a learning rate of 0, so that the network is the same at every batch size."
        " SI and RWalk follow the library's own training of a fresh network: Adam, learning rate 0.001, 10 epochs."
    ),
    (
        "For each batch size, r: Pearson's correlation with the definition over all weights; and below it, after the ×,"
        " the size: the norm of the library's importance, divided by that of the definition. – where an importance is"
        " the same for all weights, or the batch size was not run."
    ),
    (
        "Labels: the Fisher information takes them from the model, each weighted by its probability; the empirical"
        " Fisher from the data."
    ),
    (
        "RWalk, after Chaudhry et al. (2018): the batch's empirical Fisher, averaged over steps with α = 0.9, and the"
        " score Σ ΔL / (½FΔθ² + ε) over every 10 steps, clamped at 0, each divided by its largest value, and added."
        " ε = 1.2e-7, as both libraries have it."
    ),
    f"✓: the formula described gives the library's own numbers to within {REPRODUCED:g}, at every batch size.",
]


def write(folder: Path, rows: list[Row], batches: list[int], versions: list[VersionRow]) -> None:
    """Write ``audit.md`` and ``audit.json``."""
    where = {**surroundings("audit"), "command": "make audit", "versions": _versions(rows)}
    document = {
        **where,
        "title": TITLE,
        "notes": NOTES,
        "rows": [
            {
                "library": row.library,
                "version": row.version,
                "method": row.method,
                "against": row.against,
                "correlation": {b: _number(a.correlation) for b, a in row.agreements.items()},
                "size": {b: _number(a.scale) for b, a in row.agreements.items()},
                "why": row.why,
                "reproduced_to": row.reproduced,
            }
            for row in rows
        ],
        "rwalk_versions": as_data(versions),
    }
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "audit.json").write_text(json.dumps(document, indent=2, ensure_ascii=False) + "\n")
    lines = [f"# {TITLE}", "", *(f"- {key}: {value}" for key, value in where.items()), ""]
    lines += [*(f"- {note}" for note in NOTES), "", *markdown(rows, batches), "", *section(versions), ""]
    (folder / "audit.md").write_text("\n".join(lines))


def markdown(rows: list[Row], batches: list[int]) -> list[str]:
    """Return the table as lines of Markdown."""
    first, *others = batches
    heads = ("library", "method", "beside", f"batch {first}", *map(str, others), "what it computes")
    lines = [f"| {' | '.join(heads)} |", "|---" * len(heads) + "|"]
    before = None
    for row in rows:
        said = (row.library, row.method) == before
        before = row.library, row.method
        mark = " ✓" if row.reproduced is not None and row.reproduced < REPRODUCED else ""
        cells = (
            f"{row.library} {row.version}",
            row.method,
            row.against,
            *(f"{_correlation(row, batch)}<br>{_size(row, batch)}" for batch in batches),
            "as above" if said else row.why + mark,
        )
        lines.append(f"| {' | '.join(cells)} |")
    return lines


def _correlation(row: Row, batch: int) -> str:
    if batch not in row.agreements or math.isnan(row.agreements[batch].correlation):
        return "–"
    return f"{row.agreements[batch].correlation:.2f}"


def _size(row: Row, batch: int) -> str:
    if batch not in row.agreements:
        return "–"
    value = row.agreements[batch].scale
    return "NaN" if math.isnan(value) else f"×{value:.0f}" if value >= 10 else f"×{value:.2g}"


def _number(value: float) -> float | None:
    return None if math.isnan(value) else value


def _versions(rows: list[Row]) -> str:
    others = dict.fromkeys(f"{row.library} {row.version}" for row in rows)
    base = surroundings("audit")["versions"].split(", ")[:2]
    return ", ".join([*base, *others])
