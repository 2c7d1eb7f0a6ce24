"""What relatives keep by their authors' protocols, as tables: ours beside theirs, with a verdict."""

import math
import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from anchorhold_lab.analysis import Estimate, estimate
from anchorhold_lab.experiments import Result, Spec, command_of
from anchorhold_lab.report import Cell, Measured, Table
from studies.benzing2020.findings import Results
from studies.benzing2020.relatives import Reported, Row, Settings, Study
from studies.benzing2020.relatives.narrowing import command_for

_COLUMNS = ("method", "accuracy", "forgetting", "seconds a run", "runs")
_CHOSEN = ("chosen",)
_BESIDE = ("reported", "verdict", "where", "differs")
_NEAR = 1.0
"""Points by which a number may differ and still be as reported: protocols are never quite the same."""


def relatives_table(results: Results, study: Study) -> Table:
    """Return a line for each method of a study."""
    compared = any(row.reported for row in study.rows)
    searched = any(row.tried for row in study.rows)
    rows = [
        (*_row(results, study, row), *(choice_of(row),) * searched, *_beside(results, study, row) * compared)
        for row in study.rows
    ]
    said = f"{study.title}. Average accuracy over all tasks after the last, and how far accuracies fell, in per cent."
    said += f" Protocol: {study.source}." * bool(study.source)
    said += f" {'Ours differs: ' * bool(study.source)}{study.differs}" * bool(study.differs)
    if compared:
        said += (
            f" As reported means within {_NEAR:g} point or two standard errors of ours. Numbers that are remembered "
            "were not looked up."
        )
    if searched:
        said += " Chosen is the best of as many tries for each, by one seed on validation data."
    columns = (*_COLUMNS, *_CHOSEN * searched, *_BESIDE * compared)
    return Table(f"relatives-{study.name}", said, columns, tuple(rows))


def left_to_run(results: Results, studies: Sequence[Study]) -> list[Table]:
    """Return what has no result yet, with the command that makes it; no table where nothing is left."""
    rows: list[tuple[Cell, ...]] = []
    for study in studies:
        for row in study.rows:
            left = [spec for spec in study.runs(row) if results.result(spec) is None]
            if left:
                rows.append((study.title, row.name, len(left), why_left(results, left), command_of(left)))
            elif not row.is_known:
                command = command_for(results.preset.name, study, row)
                rows.append((study.title, row.name, study.runs_wanted(row), None, command))
    if not rows:
        return []
    caption = (
        "Not reached yet, in the order of worth. Each command makes the runs of one line into a store; where something "
        f"is to be found by trying first, it makes these tries as well. {FAILED}"
    )
    return [Table("relatives-left", caption, ("study", "method", "runs", "why", "command"), tuple(rows))]


FAILED = "What has failed says why, and is made again only with --retry-failed."


def why_left(results: Results, specs: Sequence[Spec]) -> str | None:
    """Return why runs have no result, by the first of which something is known."""
    return next(filter(None, map(results.why_missing, specs)), None)


def _row(results: Results, study: Study, row: Row) -> tuple[Cell, ...]:
    found = results.finished(study.runs(row))
    if not found:
        return (row.name, *[None] * (len(_COLUMNS) - 1))
    forgotten = estimate(100 * run.forgetting for run in found)
    seconds = round(statistics.mean(run.seconds for run in found), 1)
    ours = accuracy_of(found)
    assert ours is not None
    return (row.name, measured(ours), measured(forgotten), seconds, len(found))


def choice_of(row: Row) -> str | None:
    """Return what was chosen for a method, and of how many tries: of strengths also whether none beyond was tried."""
    if not row.tried:
        return None
    if row.chosen is None:
        return f"not yet, of {len(row.tried)}"
    where = where_among(row.tried, row.chosen)
    return f"{in_words(row.tried, row.chosen)}, {f'the {where} ' * bool(where)}of {len(row.tried)}"


def where_among(tried: Sequence[Settings], chosen: Settings) -> str:
    """Say whether the only number in which tries differ is the first or the last of them, in order of size."""
    differing = _differing(tried)
    if len(differing) > 1:
        return ""
    sizes, mine = [_flat(each)[differing[0]] for each in tried], _flat(chosen)[differing[0]]
    return "largest" if mine == max(sizes) else "smallest" if mine == min(sizes) else ""


def in_words(tried: Sequence[Settings], chosen: Settings) -> str:
    """Return what one try has that others have not."""
    differing = _differing(tried)
    return ", ".join(f"{name} {_flat(chosen)[name]:g}" for name in differing)


def _differing(tried: Sequence[Settings]) -> list[str]:
    flat = [_flat(each) for each in tried]
    return [name for name in flat[0] if len({each[name] for each in flat}) > 1]


def _flat(settings: Settings) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, value in settings.items():
        found |= _flat(value) if isinstance(value, Mapping) else {name: value}
    return found


def accuracy_of(found: Sequence[Result]) -> Estimate | None:
    """Return the mean accuracy of some runs, in per cent; ``None`` of none."""
    return estimate(100 * run.average_accuracy for run in found) if found else None


def measured(found: Estimate) -> Measured:
    """Return an estimate as it stands in tables."""
    return Measured(found.mean, None if math.isnan(found.error) else found.error, decimals=1)


def verdict(ours: Estimate, reported: Reported) -> str:
    """Say how ours compares with what was reported."""
    near = _NEAR if math.isnan(ours.error) else max(_NEAR, 2 * ours.error)
    more = ours.mean - reported.mean
    if abs(more) <= near:
        return "as reported"
    return f"{'above' if more > 0 else 'below'} by {abs(more):.1f}"


def _beside(results: Results, study: Study, row: Row) -> tuple[Cell, ...]:
    reported, ours = row.reported, accuracy_of(results.finished(study.runs(row)))
    if reported is None:
        return (None, None, None, row.differs or None)
    said = verdict(ours, reported) if ours is not None else "not reached yet"
    return (str(reported), said, reported.where, row.differs or None)
