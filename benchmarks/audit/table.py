"""The audit as a table and as data."""

import json
import math
from pathlib import Path
from typing import Any

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


def write(folder: Path, rows: list[Row], versions: list[VersionRow]) -> None:
    """Write ``audit.md`` and ``audit.json``."""
    where = {**surroundings("audit"), "command": "make audit", "versions": _versions(rows)}
    document = {**where, "title": TITLE, "notes": NOTES, "rows": _as_data(rows), "rwalk_versions": as_data(versions)}
    write_document(folder, document)


def add(folder: Path, rows: list[Row]) -> None:
    """Put rows into the audit that there is: they take the place of their libraries' rows, the others stay."""
    document = json.loads((folder / "audit.json").read_text(encoding="utf-8"))
    new = {row.library for row in rows}
    kept = [row for row in document["rows"] if row["library"] not in new]
    where = surroundings("audit")
    before = [one for one in document.get("added", []) if not new & set(one["libraries"])]
    added = {"libraries": sorted(new), "date": where["date"], "versions": _versions(rows), "cpu": where["cpu"]}
    document |= {"notes": NOTES, "rows": ordered(kept + _as_data(rows)), "added": [*before, added]}
    write_document(folder, document)


def replace_rwalk(folder: Path, versions: list[VersionRow]) -> None:
    """Put the section on RWalk into the audit that there is."""
    document = json.loads((folder / "audit.json").read_text(encoding="utf-8"))
    write_document(folder, document | {"rwalk_versions": as_data(versions)})


def ordered(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the rows as the table has them, anchorhold's before the others'."""
    return sorted(rows, key=lambda row: (row["library"] != "anchorhold", row["library"].lower()))


def write_document(folder: Path, document: dict[str, Any]) -> None:
    """Write the data, and the page that is made of them."""
    folder.mkdir(parents=True, exist_ok=True)
    written = json.dumps(document, indent=2, ensure_ascii=False) + "\n"
    (folder / "audit.json").write_text(written, encoding="utf-8")
    (folder / "audit.md").write_text(page(json.loads(written)), encoding="utf-8")


def page(document: dict[str, Any]) -> str:
    """Return the page of the data as they were read from ``audit.json``."""
    rows = document["rows"]
    batches = sorted({int(batch) for row in rows for batch in row["size"]})
    lines = [f"# {document['title']}", ""]
    lines += [f"- {key}: {document[key]}" for key in ("command", "date", "versions", "cpu", "threads")]
    for one in document.get("added", []):
        lines += [f"- added on {one['date']}, with {one['versions']}"]
    lines += ["", *(f"- {note}" for note in document["notes"]), "", *_table(rows, batches), ""]
    return "\n".join([*lines, *section(document["rwalk_versions"]), ""])


def _as_data(rows: list[Row]) -> list[dict[str, Any]]:
    return [
        {
            "library": row.library,
            "version": row.version,
            "method": row.method,
            "against": row.against,
            "correlation": {str(b): _number(a.correlation) for b, a in row.agreements.items()},
            "size": {str(b): _number(a.scale) for b, a in row.agreements.items()},
            "why": row.why,
            "reproduced_to": row.reproduced,
        }
        for row in rows
    ]


def markdown(rows: list[Row], batches: list[int]) -> list[str]:
    """Return the table as lines of Markdown."""
    return _table(_as_data(rows), batches)


def _table(rows: list[dict[str, Any]], batches: list[int]) -> list[str]:
    first, *others = batches
    heads = ("library", "method", "beside", f"batch {first}", *map(str, others), "what it computes")
    lines = [f"| {' | '.join(heads)} |", "|---" * len(heads) + "|"]
    before = None
    for row in rows:
        said = (row["library"], row["method"]) == before
        before = row["library"], row["method"]
        mark = " ✓" if row["reproduced_to"] is not None and row["reproduced_to"] < REPRODUCED else ""
        cells = (
            f"{row['library']} {row['version']}",
            row["method"],
            row["against"],
            *(f"{_correlation(row, str(batch))}<br>{_size(row, str(batch))}" for batch in batches),
            "as above" if said else row["why"] + mark,
        )
        lines.append(f"| {' | '.join(cells)} |")
    return lines


def _correlation(row: dict[str, Any], batch: str) -> str:
    found = row["correlation"].get(batch)
    return "–" if found is None else f"{found:.2f}"


def _size(row: dict[str, Any], batch: str) -> str:
    if batch not in row["size"]:
        return "–"
    value = row["size"][batch]
    return "NaN" if value is None else f"×{value:.0f}" if value >= 10 else f"×{value:.2g}"


def _number(value: float) -> float | None:
    return None if math.isnan(value) else value


def _versions(rows: list[Row]) -> str:
    others = dict.fromkeys(f"{row.library} {row.version}" for row in rows)
    base = surroundings("audit")["versions"].split(", ")[:2]
    return ", ".join([*base, *others])
