"""How ``python -m studies.benzing2020`` ends: the verdicts, where the report is, and what the shell is told."""

import dataclasses
from typing import TYPE_CHECKING

import typer

from anchorhold_lab.cli.exits import ExitCode, complain, stop
from anchorhold_lab.cli.output import messages, print_json, results, table

if TYPE_CHECKING:
    from studies.benzing2020 import Reproduction

_WITHIN = {True: "within", False: "outside", None: ""}


def report_reproduction(found: "Reproduction", *, as_json: bool, only_report: bool = False) -> None:
    """Show the verdicts and the report's place, and leave with the right code."""
    if as_json:
        print_json(
            {
                "event": "report",
                "report": str(found.index),
                "runs": len(found.specs),
                "finished": found.finished,
                "failed": found.failed,
                "damaged": list(found.damaged),
                "searches_left": found.searches_left,
                "interrupted": found.interrupted,
                "verdicts": [dataclasses.asdict(verdict) for verdict in found.verdicts],
            }
        )
    else:
        _show(found)
    complain(found.damaged)
    if only_report or found.complete:
        return
    left = f"{found.finished} of {len(found.specs)} runs finished"
    if found.searches_left:
        left += f" and {found.searches_left} strengths still to be searched for"
    if found.interrupted:
        stop(f"Stopped with {left}. The same command goes on.")
    messages().print(f"Done with {left}; the report says what is missing, and why.", soft_wrap=True)
    raise typer.Exit(ExitCode.FAILED)


def _show(found: "Reproduction") -> None:
    console = results()
    if found.verdicts:
        # On which side of the threshold the authors' own number lies, where any claim has one.
        known = any(verdict.authors for verdict in found.verdicts)
        columns = ("claim", "verdict", *("authors' data",) * known, "statistic", "threshold")
        shown = table(*columns, wrap=("claim", "statistic", "threshold"))
        for verdict in found.verdicts:
            said = verdict.statistic or verdict.note
            authors = (_WITHIN[verdict.authors_within],) * known
            shown.add_row(verdict.name, verdict.answer, *authors, said, verdict.threshold)
        console.print(shown)
    console.print(f"\nThe report: {found.index}", soft_wrap=True)
