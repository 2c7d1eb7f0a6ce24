"""How ``anchorhold-lab search`` ends: the grid, the choice and its test, and what the shell is told."""

import typer
from rich.table import Table

from anchorhold_lab.cli.commands.stored_runs.comparison import mean_and_error
from anchorhold_lab.cli.exits import ExitCode, complain, stop
from anchorhold_lab.cli.output import messages, print_json, results, table
from anchorhold_lab.experiments import Point, SearchOutcome, Store

_COLUMNS = {False: "no re-init", True: "re-init"}


def report_search(outcome: SearchOutcome, store: Store, *, as_json: bool) -> None:
    """Show what a search found, and leave with the right code."""
    if as_json:
        print_json({"event": "search", **outcome.to_dict(), "store": str(store.folder)})
    else:
        console = results()
        if outcome.points:
            title = f"{outcome.measure} on {outcome.scenario}: accuracy in % on validation data"
            if len({point.seeds for point in outcome.points}) > 1:
                title += ", of one seed where no number is given"
            console.print(title, style="bold", soft_wrap=True)
            console.print(grid_table(outcome))
        if outcome.choice is not None:
            console.print(f"\n{outcome.why}", soft_wrap=True)
        if outcome.test is not None:
            others = f"{outcome.test.seeds} other seed{'s' * (outcome.test.seeds > 1)}"
            console.print(f"On test data, over {others}: {_figure(outcome.test)} %")
    complain(store.group_damage())
    if outcome.stopped == "interrupted":
        stop(f"Stopped with {len(outcome.points)} points of the grid tried. The same command goes on.")
    if outcome.stopped == "waiting":
        messages().print("Another process is making some of these runs. The same command goes on once they are there.")
        raise typer.Exit(ExitCode.FAILED)
    if outcome.choice is None:
        messages().print(outcome.why, soft_wrap=True)
        raise typer.Exit(ExitCode.FAILED)
    if outcome.test is not None and outcome.test.failed:
        messages().print("`anchorhold-lab runs list` shows which test runs failed; --retry-failed tries them again.")
        raise typer.Exit(ExitCode.FAILED)


def grid_table(outcome: SearchOutcome) -> Table:
    """Return a table with a row for each strength."""
    cells: dict[float, dict[bool, str]] = {}
    for point in outcome.points:
        chosen = " ← chosen" if point == outcome.choice else ""
        seeds = f" ({point.seeds} seeds)" if point.seeds > 1 and not point.failed else ""
        cells.setdefault(point.strength, {})[point.reinitialise] = _figure(point) + seeds + chosen
    tried = [name for choice, name in _COLUMNS.items() if any(choice in row for row in cells.values())]
    symbol = outcome.points[0].symbol
    shown = table(symbol, *tried, right=(symbol,))
    for strength, row in cells.items():
        shown.add_row(f"{strength:g}", *(row.get(choice, "") for choice, name in _COLUMNS.items() if name in tried))
    return shown


def _figure(point: Point) -> str:
    """Return accuracy and error, and how many runs failed."""
    if not point.finished:
        return "failed"
    failed = f" ({point.failed} of {point.seeds} failed)" if point.failed else ""
    return mean_and_error(point.finished) + failed
