"""How ``anchorhold-lab run`` ends: what came out, and what the shell is told."""

from collections.abc import Sequence

import typer

from anchorhold_lab.cli.commands.stored_runs.comparison import compare, print_comparison
from anchorhold_lab.cli.exits import ExitCode, complain, stop
from anchorhold_lab.cli.output import messages, print_json, results
from anchorhold_lab.experiments import Spec, Store, Summary
from anchorhold_lab.experiments.store.listing.making_rows import rows_of_results


def report(specs: Sequence[Spec], store: Store, summary: Summary, *, as_json: bool) -> None:
    """Show what came out, also of runs that had finished before, and leave with the right code."""
    entries = [store.entry(spec) for spec in specs]
    found = [entry.result for entry in entries if entry.result is not None]
    failed = sum(entry.status == "failed" for entry in entries)
    lines = compare(rows_of_results(found))
    if as_json:
        print_json(
            {
                "event": "summary",
                "runs": len(specs),
                "finished": len(found),
                "failed": failed,
                "interrupted": summary.interrupted,
                "store": str(store.folder),
                "lines": [line.plain() for line in lines],
            }
        )
    elif lines:
        print_comparison(lines, results())
    complain([*(entry.damage for entry in entries), *summary.damaged])
    if summary.interrupted:
        stop(f"Stopped with {len(found)} of {len(specs)} runs finished. The same command goes on.")
    if len(found) < len(specs):
        advice = " `anchorhold-lab runs show ID` says why; --retry-failed tries them again." if failed else ""
        messages().print(f"{len(specs) - len(found)} of {len(specs)} runs have no result.{advice}")
        raise typer.Exit(ExitCode.FAILED)
