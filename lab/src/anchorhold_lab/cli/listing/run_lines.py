"""``anchorhold-lab runs list``: a line for every run."""

from collections.abc import Sequence
from typing import Any

from rich.console import Console

from anchorhold_lab.cli.listing.plain_table import Column, Line, PlainTable
from anchorhold_lab.cli.progress.labels import duration, percent, shown_value
from anchorhold_lab.experiments.store.listing.rows import Row

_SHORT = 8
"""How many digits of an id are shown where they are to be read; show takes any beginning that is unique."""
_NAMED = ("scenario", "measure", "strength")
_OWN = (*_NAMED, "judge_by")
"""What has columns of its own."""
_JUDGES = {"test": "test", "validation": "valid."}
_LOST = "nats"
"""The heading of what was lost of the kept inputs of the task that has lost most."""
_STYLES = {"finished": "", "failed": "red", "damaged": "red"}


def plain_row(row: Row) -> dict[str, Any]:
    """Return a run as plain values."""
    known: dict[str, Any] = {"id": row.id}
    known |= {name: row.setting.get(name) for name in _NAMED}
    known |= {"seed": row.seed, "status": row.status}
    if row.setting:
        known |= {name: row.setting[name] for name in ("judge_by", "holds", "source")}
        known["unusual"] = {name: row.setting[name] for name in row.unusual}
    if row.damage:
        known["damage"] = row.damage
    if row.figures is not None:
        known |= row.figures.metrics
        beside = {name: getattr(row.figures, name) for name in ("found_strength", "worst_kl")}
        known |= {name: value for name, value in beside.items() if value is not None}
        known |= {"seconds": row.figures.training_seconds}
        known |= {"finished_at": row.figures.finished_at, "device": row.figures.device}
    return known


def print_runs(rows: Sequence[Row], console: Console) -> None:
    """Print a line for every run; test and validation samples have columns of their own, as far as there are both."""
    judges = {str(row.setting["judge_by"]) for row in rows if row.status == "finished" and row.setting}
    judged_by = ["test", "validation"] if len(judges) > 1 else sorted(judges) or ["test"]
    named = ["accuracy"] if judged_by == ["test"] else [_JUDGES[judge] for judge in judged_by]
    lost = [_LOST] if any(row.figures is not None and row.figures.worst_kl is not None for row in rows) else []
    columns = [
        *(Column("id"), Column("scenario", breaks=True), Column("measure", breaks=True)),
        *(Column(name, right=True) for name in ("c", "seed", *named, "forgot", *lost, "time")),
    ]
    PlainTable(columns, [_line(row, judged_by, bool(lost)) for row in rows], below="not as usual").print(console)


def _line(row: Row, judged_by: Sequence[str], lost: bool) -> Line:
    cells = [row.id[:_SHORT], *(shown_value(row.setting.get(name)) for name in _NAMED), shown_value(row.seed)]
    if row.figures is not None and row.figures.found_strength is not None:
        cells[-2] = f"{row.figures.found_strength:.3g}"  # what a relative one has become, or a tolerance ended at
    if row.status == "finished" and row.figures is not None:
        accuracy, judge = percent(row.figures.average_accuracy), row.setting["judge_by"]
        cells += [accuracy if judge == name else "" for name in judged_by]
        kl = row.figures.worst_kl
        cells += [percent(row.figures.forgetting), *([f"{kl:.2g}" if kl is not None else ""] if lost else [])]
        cells += [duration(row.figures.training_seconds)]
    else:
        cells += [row.status, *("" for _ in judged_by[1:]), "", *([""] if lost else []), ""]
    unusual = ", ".join(f"{name} {shown_value(row.setting[name])}" for name in row.unusual if name not in _OWN)
    return Line(cells, _STYLES.get(row.status, "dim"), unusual)
