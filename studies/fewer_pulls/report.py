"""The page of what was found."""

import json
import statistics
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from anchorhold.whole_files import write_whole
from studies.fewer_pulls.ways import Way

COMMAND = "python -m studies.fewer_pulls"
Row = dict[str, Any]


def write(results: Path, rows: Sequence[Row]) -> str:
    """Write the page and all rows, and return the page."""
    found = page(rows)
    results.mkdir(parents=True, exist_ok=True)
    write_whole(results / "fewer-pulls.md", found.encode())
    write_whole(results / "fewer-pulls.json", (json.dumps(list(rows), indent=1) + "\n").encode())
    return found


def page(rows: Sequence[Row]) -> str:
    """Return the page."""
    by_kind: dict[str, list[Row]] = defaultdict(list)
    seen: set[tuple[str, str]] = set()
    for row in rows:
        if row["key"] and (row["kind"], row["key"]) in seen:  # made on two machines
            continue
        seen.add((row["kind"], row["key"]))
        by_kind[row["kind"]].append(row)
    lines = ["# Pulls that come less often, or along fewer directions", "", f"`{COMMAND}`.", ""]
    if by_kind["quadratic"]:
        lines += ["## On a quadratic, in double precision", "", *of_quadratic(by_kind["quadratic"]), ""]
    if by_kind["costs"]:
        lines += ["## What a step costs", "", *of_costs(by_kind["costs"]), ""]
    if by_kind["digits"]:
        lines += ["## Permuted digits", "", *of_digits(by_kind["digits"]), ""]
    if by_kind["card"]:
        lines += ["## At scale", "", *of_scale(by_kind["card"]), ""]
    return "\n".join(lines).rstrip() + "\n"


def table(heads: Sequence[str], body: Iterable[Sequence[str]]) -> list[str]:
    """Return a table's lines."""
    return [f"| {' | '.join(heads)} |", "|---" * len(heads) + "|", *(f"| {' | '.join(cells)} |" for cells in body)]


def of_quadratic(rows: Sequence[Row]) -> list[str]:
    """Return, way by way, the regret and the distance at each strength."""
    strengths = sorted({row["strength"] for row in rows})
    ways = list(dict.fromkeys(row["way"] for row in rows))
    by = {(row["way"], row["strength"]): row for row in rows}
    body = [[way, *(_of_quadratic(by[way, c]) for c in strengths)] for way in ways]
    closed = max(row["from closed form"] for row in rows if row.get("from closed form") is not None)
    said = (
        "How far a way ends from the least value of loss and hold together, as a share of that value, and in brackets "
        "how far from where that is, as a share of the way that the loss alone would go; – where it diverges. Every "
        f"k-th step ends within {closed:.0e} of its closed form."
    )
    return [said, "", *table(["way", *(f"c = {c:g}" for c in strengths)], body)]


def _of_quadratic(row: Row) -> str:
    return "–" if row["away"] is None else f"{max(0.0, row['regret']):.1e} ({row['away']:.1e})"


def of_costs(rows: Sequence[Row]) -> list[str]:
    """Return, setting by setting, the cost of a step with each way."""
    settings = list(dict.fromkeys(row["setting"] for row in rows))
    by = {(row["setting"], row["case"]): row for row in rows if "case" in row}
    cases = list(dict.fromkeys(case for _, case in by))
    body = [[case, *(f"{by[s, case]['ratio']:.2f}" if (s, case) in by else "" for s in settings)] for case in cases]
    found = table(["a step of SGD, for an unprotected one", *settings], body)
    return [*found, "", *of_ranks(rows)] if any("ranks" in row for row in rows) else found


def of_ranks(rows: Sequence[Row]) -> list[str]:
    """Return how many directions hold a share of each layer's trace."""
    body = []
    for row in rows:
        if "ranks" in row:
            layers = [f"{name}: {_sides(size, ranks)}" for name, (size, ranks) in list(row["layers"].items())[:4]]
            body.append([row["setting"], f"{row['ranks']:.1%}", "; ".join(layers)])
    return table(["setting", "of the trace", "directions of outputs and of inputs, of the first layers"], body)


def _sides(size: Sequence[int], ranks: Sequence[int | None]) -> str:
    return " and ".join(f"{'all' if rank is None else rank} of {own}" for own, rank in zip(size, ranks, strict=True))


def of_digits(rows: Sequence[Row]) -> list[str]:
    """Return, optimizer by optimizer, the accuracy of each way at its best strength and at each of them."""
    said = (
        "EWC in rotated coordinates, three tasks of 300 steps, 64-64-64-10. Test accuracy over all tasks after the "
        "last, in per cent, at the best of the relative strengths by validation data, with its standard error, and at "
        "each of them; – where a run diverged. The multiplications of the hold are for those of one pull, or one "
        "product of Q, at each step."
    )
    lines = [said]
    for optimizer in dict.fromkeys(row["optimizer"] for row in rows):
        own = [row for row in rows if row["optimizer"] == optimizer]
        title = f"{optimizer}, {len({row['seed'] for row in own})} seeds"
        lines += [
            "",
            *_ways_table(own, title, lambda row: row["validation"], lambda row: row["test"], 1, "multiplications"),
        ]
    return lines


def of_scale(rows: Sequence[Row]) -> list[str]:
    """Return, setting by setting and optimizer by optimizer, how well both tasks are done with each way."""
    said = (
        "Two tasks; the network has learned the first one unprotected. The mean of both tasks' test accuracies in "
        "per cent, or of both texts' bits a byte (less is better), with its standard error, at the best of the "
        "relative strengths by that mean itself, and at each of them."
    )
    lines = [said]
    for setting, optimizer in dict.fromkeys((row["setting"], row["optimizer"]) for row in rows):
        own = [row for row in rows if (row["setting"], row["optimizer"]) == (setting, optimizer)]
        sign = -1 if setting == "english-python" else 1
        digits = 3 if sign < 0 else 1
        title = f"{setting}, {optimizer}"
        lines += ["", *_ways_table(own, title, lambda row, s=sign: s * _mean(row), _mean, digits, "seconds")]
    return lines


def _mean(row: Row) -> float:
    return float(row["old"] + row["new"]) / 2


def _ways_table(rows: Sequence[Row], title: str, chosen_by: Any, shown: Any, digits: int, cost: str) -> list[str]:
    strengths = sorted({row["strength"] for row in rows if row["way"]["kind"] != "none"})
    body = []
    ways = list(dict.fromkeys(Way(**row["way"]) for row in rows))
    kinds = list(dict.fromkeys(way.kind for way in ways))
    for way in sorted(ways, key=lambda way: (kinds.index(way.kind), way.every, -way.share, way.products)):
        own: Mapping[float, list[Row]] = {
            s: [row for row in rows if Way(**row["way"]) == way and row["strength"] == s] for s in {0.0, *strengths}
        }
        whole = {s: each for s, each in own.items() if each and not any("diverged" in row for row in each)}
        cells = [_of_rows(whole[s], shown, digits) if s in whole else "–" if own[s] else "" for s in strengths]
        if not whole:
            body.append([way.text, "–", "", "", *cells])
            continue
        best = max(whole, key=lambda s: statistics.mean(map(chosen_by, whole[s])))
        costs = statistics.median(row[cost] for row in whole[best])
        text = "no hold" if way.kind == "none" else way.text
        body.append([text, _of_rows(whole[best], shown, digits), f"{best:g}", f"{costs:.2f}", *cells])
    return table([title, "best", "at s =", cost, *(f"s = {s:g}" for s in strengths)], body)


def _of_rows(rows: Sequence[Row], shown: Any, digits: int) -> str:
    values = [shown(row) for row in rows]
    error = f" ± {statistics.stdev(values) / len(values) ** 0.5:.{digits}f}" if len(values) > 1 else ""
    return f"{statistics.mean(values):.{digits}f}{error}"
