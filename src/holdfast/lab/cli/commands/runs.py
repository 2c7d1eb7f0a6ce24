"""``holdfast runs``: what is in a store."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.table import Table
from rich.text import Text

from holdfast.errors import ConfigurationError, DamagedError, StoreError
from holdfast.lab.cli.arguments import DEFAULT_STORE, StoreFolder
from holdfast.lab.cli.exits import complain
from holdfast.lab.cli.interrupt import loading
from holdfast.lab.cli.output import pairs, print_json, results, table
from holdfast.lab.cli.progress.labels import duration, moment, percent, shown_value

if TYPE_CHECKING:
    from holdfast.lab.experiments import Entry, Result, Store

app = typer.Typer(help="List, show and compare the runs in a store.", no_args_is_help=True)

Json = Annotated[bool, typer.Option("--json", help="For machines: one JSON object a line.")]

_SHORT = 8
"""How many digits of an id are shown where they are to be read; show takes any beginning that is unique."""


@app.command("list")
def list_runs(store: StoreFolder = DEFAULT_STORE, *, as_json: Json = False) -> None:
    """List every run that was ever begun, the oldest result first and unfinished ones last."""
    place = _existing(store)
    entries = place.entries()
    rows = [_row(entry) for entry in entries]
    if as_json:
        for row in rows:
            print_json(row)
    elif not rows:
        results().print(f"There are no runs in {place.folder}. `holdfast run permuted-digits` makes one.")
    else:
        results().print(_listing(rows))
    complain(entry.damage for entry in entries)


@app.command("show")
def show_run(
    id: Annotated[str, typer.Argument(help="The run's id, or its beginning.")],
    store: StoreFolder = DEFAULT_STORE,
    *,
    as_json: Json = False,
) -> None:
    """Show all that is known of one run."""
    with loading():
        pass

    place = _existing(store)
    found = _find(place, id)
    entry = place.entry(found)
    observations, damage = _observed(place, found)
    if as_json:
        print_json(
            {
                "id": found,
                "status": entry.status,
                "spec": None if entry.spec is None else entry.spec.to_dict(),
                "result": None if entry.result is None else entry.result.to_dict(),
                "failures": [failure.to_dict() for failure in entry.failures],
                "observations": observations,
            }
        )
    else:
        _print_entry(entry, observations)
    complain(dict.fromkeys([*entry.damage.splitlines(), *damage]))


def _observed(store: Store, id: str) -> tuple[list[str], list[str]]:
    """Return which probes have left something that can be read, and what cannot."""
    try:
        return list(store.observations(id)), []
    except DamagedError as error:
        return [], [str(error)]


def _print_entry(entry: Entry, observations: Sequence[str]) -> None:
    console = results()
    console.print(f"run {entry.id}: {entry.status}", style="bold")
    shown = pairs()
    for name, value in ({} if entry.spec is None else fields_of(entry.spec)).items():
        shown.add_row(name.replace("_", " "), shown_value(value))
    console.print(shown)
    if entry.result is not None:
        console.print("\nWhat came out", style="bold")
        console.print(_figures(entry.result))
        console.print("\nAccuracy in % on every task, after learning each", style="bold")
        console.print(_matrix(entry.result))
    if observations:
        said = f"\nObservations, for Store.observations({entry.id!r}): {', '.join(observations)}"
        console.print(said, soft_wrap=True)
    for failure in entry.failures:
        console.print(f"failed at {moment(failure.failed_at)} on {failure.device}: {failure.reason}", style="red")


@app.command("compare")
def compare_runs(
    store: StoreFolder = DEFAULT_STORE,
    by: Annotated[
        list[str] | None,
        typer.Option(
            help="A field to group by, such as measure or strength; may be repeated. All that differ if left out.",
            show_default=False,
        ),
    ] = None,
    *,
    as_json: Json = False,
) -> None:
    """Compare the finished runs: mean and standard error over seeds."""
    with loading():
        from holdfast.lab.cli.commands.comparison import compare, print_comparison  # noqa: PLC0415

    place = _existing(store)
    entries = place.entries()
    # A result that is whole counts, whatever has become of the files beside it.
    lines = compare([entry.result for entry in entries if entry.result is not None], by or ())
    if as_json:
        for line in lines:
            print_json(line.plain())
    elif lines:
        print_comparison(lines, results())
    else:
        results().print(f"There are no finished runs in {place.folder}.")
    complain(entry.damage for entry in entries)


def _existing(folder: Path) -> "Store":
    with loading():
        from holdfast.lab.experiments import Store  # noqa: PLC0415

    store = Store(folder)
    if not store.folder.is_dir():
        raise StoreError(f"There is no folder {folder}. `holdfast run` makes one; --store names another.")
    return store


def _find(store: "Store", start: str) -> str:
    """Return the id that begins like this."""
    found = [name for name in store.ids() if name.startswith(start.lower())]
    if len(found) == 1:
        return found[0]
    if not found:
        raise ConfigurationError(f"No run in {store.folder} begins with {start!r}; `holdfast runs list` lists them.")
    raise ConfigurationError(f"{len(found)} runs begin with {start!r}: {', '.join(found)}. Give more of the id.")


def _row(entry: "Entry") -> dict[str, Any]:
    spec, result = entry.spec, entry.result
    named = {name: getattr(spec, name, None) for name in ("scenario", "measure", "strength", "seed")}
    known: dict[str, Any] = {"id": entry.id, **named, "status": entry.status}
    if entry.damage:
        known["damage"] = entry.damage
    if result is not None:
        known |= result.metrics
        known |= {"seconds": result.training_seconds, "finished_at": result.finished_at, "device": result.device}
    return known


def _listing(rows: list[dict[str, Any]]) -> Table:
    figures = ("accuracy", "forgetting", "time")
    shown = table(
        *("id", "scenario", "measure", "c", "seed"),
        *figures,
        right=("c", "seed", *figures),
        wrap=("scenario", "measure"),
    )
    for row in rows:
        finished = row["status"] == "finished"
        shown.add_row(
            row["id"][:_SHORT],
            *(shown_value(row[name]) for name in ("scenario", "measure", "strength", "seed")),
            percent(row["average_accuracy"]) if finished else row["status"],
            percent(row["forgetting"]) if finished else "",
            duration(row["seconds"]) if finished else "",
            style="red" if row["status"] in ("failed", "damaged") else "" if finished else "dim",
        )
    return shown


def _figures(result: "Result") -> Table:
    shown = pairs()
    for name, value in result.metrics.items():
        shown.add_row(name.replace("_", " "), percent(value))
    shown.add_row("training time", duration(result.training_seconds))
    shown.add_row("runs side by side", str(result.side_by_side))
    shown.add_row("resumed", f"{result.resumed} times")
    shown.add_row("finished at", moment(result.finished_at))
    shown.add_row("device", result.device)
    shown.add_row("commit", result.commit or "-")
    shown.add_row("versions", ", ".join(f"{name} {version}" for name, version in result.versions.items()))
    return shown


def _matrix(result: "Result") -> Table:
    tasks = [f"task {i + 1}" for i in range(len(result.matrix))]
    shown = table("learned", *tasks, right=tuple(tasks))
    for learned, row in enumerate(result.matrix):
        cells = (Text(f"{100 * a:.1f}", style="dim" if task > learned else "") for task, a in enumerate(row))
        shown.add_row(tasks[learned], *cells)
    return shown
