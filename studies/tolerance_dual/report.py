"""The comparison: how near its target each follower ends, what is learned of the new task, and how soon it is near."""

import json
import math
import re
import statistics
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from anchorhold.whole_files import write_whole
from benchmarks.harness import write_rows
from studies.tolerance_dual import toy
from studies.tolerance_dual.controllers import AIM, DualAscent, Follower, followers
from studies.tolerance_dual.outcomes import (
    ALLOWED,
    TODAY,
    Row,
    Verdict,
    answer,
    better_by,
    by_setting,
    cell_of,
    cost,
    error,
    follower_of,
    told,
)
from studies.tolerance_dual.trials import CHOOSING, DIGITS

COMMAND = "python -m studies.tolerance_dual"
NAME = "tolerance-dual"


def summary(size: str, setting: str, rows: Sequence[Row], compared: Sequence[Follower]) -> list[str]:
    """Return a setting's table, a line for each follower."""
    heads = ["controller and start", "runs", "\\|log(KL/target)\\|, median", "worst", "within 30 %", "better by, mean"]
    heads += ["the worst cell", "looks", "looks until near", "never near", "share of looks above", "largest peak"]
    lines = ["", f"## {setting}, {size}", "", f"| {' | '.join(heads)} |", "|---" * len(heads) + "|"]
    today = [row for row in rows if follower_of(row) == TODAY and "end" in row]
    for each in compared:
        own = [row for row in rows if follower_of(row) == each and "end" in row]
        if not own:
            continue
        errors = [abs(error(row)) for row in own]
        gains = better_by(setting, own, today)
        near = [row["until_near"] for row in own if row["until_near"] is not None]
        cells = [told(each), str(len(own)), f"{statistics.median(errors):.2f}", f"{max(errors):.2f}"]
        cells += [str(sum(math.exp(error(row)) <= 1.3 and math.exp(error(row)) >= 0.7 for row in own))]
        cells += [f"{statistics.mean(gains):+.3f}", f"{min(gains):+.3f}"] if gains else ["–", "–"]
        cells += [f"{statistics.mean(row['looks'] for row in own):.0f}"]
        cells += [f"{statistics.median(near):.0f}" if near else "–", str(len(own) - len(near))]
        cells += [f"{statistics.mean(row['above'] for row in own):.2f}", f"{max(row['peak'] for row in own):.1f}"]
        lines.append(f"| {' | '.join(cells)} |")
    diverged = sum("end" not in row for row in rows)
    return lines + (["", f"{diverged} runs diverged."] if diverged else [])


def cells_table(setting: str, rows: Sequence[Row]) -> list[str]:
    """Return a line for each form, optimiser and tolerance: the end in targets, and what was learned."""
    every = list(followers())
    heads = ["form", "optimiser", "nats", *map(told, every)]
    lines = ["", f"| {' | '.join(heads)} |", "|---" * len(heads) + "|"]
    for key in sorted({cell_of(row)[1:] for row in rows}):
        cells = [str(part) for part in key]
        for each in every:
            own = [row for row in rows if cell_of(row)[1:] == key and follower_of(row) == each and "end" in row]
            if not own:
                cells.append("–")
                continue
            ends = statistics.geometric_mean([math.exp(error(row)) for row in own])
            new = statistics.mean(row["back"]["new"] for row in own)
            cells.append(f"{ends:.2f}, {new:.{3 if setting in ALLOWED else 1}f}")
        lines.append(f"| {' | '.join(cells)} |")
    return lines


def page(rows: Sequence[Row], where: dict[str, str]) -> str:
    """Return what was found."""
    lines = ["# Two controllers of a strength that follows a tolerance", ""]
    lines += [f"- {key}: {value}" for key, value in where.items()]
    lines += [f"- machines: {'; '.join(sorted({row['machine'] for row in rows}))}"]
    lines += [
        "",
        (
            "The second of two tasks is learned under EWC with a tolerance. *Slowing* is the library's controller, "
            "whose steps shrink as time passes; *dual* is dual ascent, log c moved at each look by "
            f"{DualAscent.multiple:g}·log(KL/target), no further than {DualAscent.clip:g}. Both look at the same "
            f"inputs as often, and aim at {AIM:g} tolerances, the target. A run begins with the library's strength, "
            "relative to the mean importance, or with the exchange rate 1, c = 1/(2T) for T scored tokens of a sample. "
            "KL is that of all kept inputs where training ends, before `pull_back()`; the new task is judged after it. "
            "*Better by* is against the library's controller and start on the same seed: points of accuracy, or bits a "
            "byte. *Near* is within 30 % of the target at a look."
        ),
    ]
    groups = by_setting(rows)
    for (size, setting), own in groups.items():
        lines += summary(size, setting, own, list(followers()))
        lines += ["", "The KL where training ended, in targets, and the new task after going back:"]
        lines += cells_table(setting, own)
    lines += ["", "## By the rule", ""]
    lines += [
        (
            "Better or equal is: the median and the worst |log(KL/target)| no larger, and the new task no more than "
            "half a point (a hundredth of a bit a byte) worse in the mean over cells."
        ),
        "",
    ]
    for (_, setting), own in groups.items():
        for each in followers():
            if each != TODAY:
                lines.append(str(Verdict.of(setting, own, each) or f"- {setting}: {told(each)}: not run."))
    chosen = [row for row in rows if row["trial"]["seed"] in CHOOSING and row["trial"]["setting"] == DIGITS]
    if chosen:
        lines += ["", "## How the multiple and the clip were chosen", ""]
        lines += [
            (
                "On the toy, and on two other seeds of permuted digits: of the pairs that learn within half a point of "
                "the best, from the library's start, the one that ends nearest. *New* is the mean accuracy."
            ),
            "",
        ]
        lines += candidates_table(chosen)
    lines += ["", "## The toy", ""]
    lines += [
        (
            "The mean of |log(KL/target)| at the end, over eight plants, five starts from a thirtieth to thirty times "
            "the right strength, and three seeds; in brackets the worst, and the median peak in targets."
        ),
        "",
        *toy.table(),
    ]
    return "\n".join(lines) + "\n"


def candidates_table(rows: Sequence[Row]) -> list[str]:
    """Return what each multiple and clip came to."""
    by: dict[Follower, dict[tuple[Any, ...], Row]] = defaultdict(dict)
    for row in rows:
        by[follower_of(row)][cell_of(row)] = row
    shared = set.intersection(*(set(cells) for cells in by.values()))
    lines = ["| start | multiple | clip | runs | \\|log(KL/target)\\|, median | worst | new |", "|---" * 7 + "|"]
    for each, cells in sorted(by.items(), key=lambda pair: (pair[0].start, pair[0].multiple, pair[0].clip)):
        errors = [abs(error(cells[cell])) for cell in shared]
        new = statistics.mean(cells[cell]["back"]["new"] for cell in shared)
        lines.append(
            f"| {each.start} | {each.multiple:g} | {each.clip:g} | {len(errors)} | {statistics.median(errors):.2f} | "
            f"{max(errors):.2f} | {new:.2f} |"
        )
    return lines


def known(folder: Path) -> list[Row]:
    """Return the rows that a page was made of; none where there is no page yet."""
    path = folder / f"{NAME}.json"
    rows: list[Row] = json.loads(path.read_text(encoding="utf-8"))["rows"] if path.exists() else []
    return rows


def write(folder: Path, rows: Sequence[Row], readme: Path | None = None) -> str:
    """Write the page and the rows, the latest of each trial, and return where the page is.

    Args:
        folder: where the page goes.
        rows: the latest last.
        readme: whose answer and cost are written too.
    """
    latest = list({(row["size"], str(row["trial"])): row for row in rows}.values())
    write_rows(folder, NAME, COMMAND, latest, page)
    if readme is not None:
        text = readme.read_text(encoding="utf-8")
        for name, said in (("Answer", answer(latest)), ("Cost", cost(latest))):
            text = _with_line(text, name, said)
        write_whole(readme, text.encode())
    return str(folder / f"{NAME}.md")


def _with_line(text: str, name: str, said: str) -> str:
    line = f"- **{name}:** {said}"
    return re.sub(rf"^- \*\*{name}:\*\* .*$", lambda _: line, text, flags=re.MULTILINE)
