"""``anchorhold-lab runs``: what is in a store."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.table import Table
from rich.text import Text

from anchorhold.errors import ConfigurationError, DamagedError, StoreError
from anchorhold_lab.cli.arguments import DEFAULT_STORE, StoreFolder
from anchorhold_lab.cli.exits import complain
from anchorhold_lab.cli.interrupt import loading
from anchorhold_lab.cli.listing.filters import Measures, Scenarios, Where, chosen
from anchorhold_lab.cli.listing.run_lines import plain_row, print_runs
from anchorhold_lab.cli.output import pairs, print_json, results, table
from anchorhold_lab.cli.progress.labels import duration, moment, percent, shown_value
from anchorhold_lab.experiments.store.listing.reading_rows import rows_in, status_told_apart, told_apart
from anchorhold_lab.user_paths import advice, culprit, user_path

if TYPE_CHECKING:
    from anchorhold_lab.experiments import Entry, Result, Store

app = typer.Typer(help="List, show, compare, draw and pack the runs in a store.", no_args_is_help=True)

Json = Annotated[bool, typer.Option("--json", help="For machines: one JSON object a line.")]


@app.command("list")
def list_runs(
    store: StoreFolder = DEFAULT_STORE,
    measure: Measures = None,
    scenario: Scenarios = None,
    where: Where = None,
    *,
    as_json: Json = False,
) -> None:
    """List the runs that were ever begun, the oldest result first and unfinished ones last.

    Beside each, or beneath it, stands all in which it is not as usual for its scenario and measure.
    """
    folder = existing_folder(store)
    every = told_apart(rows_in(folder), folder)
    rows = chosen(every, measure, scenario, where)
    if as_json:
        for row in rows:
            print_json(plain_row(row))
    elif not every:
        results().print(f"There are no runs in {folder}. `anchorhold-lab run permuted-digits` makes one.")
    elif not rows:
        results().print(f"None of the {len(every)} runs in {folder} is all that was asked for.")
    else:
        print_runs(rows, results())
    complain(row.damage for row in every)


@app.command("show")
def show_run(
    id: Annotated[str, typer.Argument(help="The run's id, or its beginning.")],
    store: StoreFolder = DEFAULT_STORE,
    *,
    as_json: Json = False,
) -> None:
    """Show all that is known of one run."""
    place = existing_store(store)
    found = find_run(place, id)
    entry = place.entry(found)
    status = status_told_apart(entry.status, place.run_folder(found))
    observations, damage = _observed(place, found)
    if as_json:
        print_json(
            {
                "id": found,
                "status": status,
                "spec": None if entry.spec is None else entry.spec.to_dict(),
                "result": None if entry.result is None else entry.result.to_dict(),
                "failures": [failure.to_dict() for failure in entry.failures],
                "observations": observations,
            }
        )
    else:
        _print_entry(entry, status, observations)
    complain(dict.fromkeys([*entry.damage.splitlines(), *damage]))


def _observed(store: "Store", id: str) -> tuple[list[str], list[str]]:
    """Return which probes have left something that can be read, and what cannot."""
    try:
        return list(store.observations(id)), []
    except DamagedError as error:
        return [], [str(error)]


def _print_entry(entry: "Entry", status: str, observations: Sequence[str]) -> None:
    with loading():
        from anchorhold_lab.experiments.specs.spec_fields import fields_of  # noqa: PLC0415

    console = results()
    console.print(f"run {entry.id}: {status}", style="bold")
    shown = pairs()
    for name, value in ({} if entry.spec is None else fields_of(entry.spec)).items():
        shown.add_row(name.replace("_", " "), shown_value(value))
    console.print(shown)
    if entry.result is not None:
        console.print("\nWhat came out", style="bold")
        console.print(_figures(entry.result))
        console.print("\nAccuracy in % on every task, after learning each", style="bold")
        console.print(_matrix(entry.result))
        if any(noted.sets for noted in entry.result.retention):
            console.print("\nWhat is left of the tasks before, after learning each", style="bold")
            console.print(_retention(entry.result))
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
    measure: Measures = None,
    scenario: Scenarios = None,
    where: Where = None,
    *,
    as_json: Json = False,
) -> None:
    """Compare the finished runs: mean and standard error over seeds.

    Runs that are judged by test samples and by validation samples have tables of their own.
    """
    with loading():
        from anchorhold_lab.cli.commands.stored_runs.comparison import compare, print_comparison  # noqa: PLC0415

    folder = existing_folder(store)
    every = rows_in(folder)
    # A result that is whole counts, whatever has become of the files beside it.
    finished = [row for row in every if row.figures is not None]
    lines = compare(chosen(finished, measure, scenario, where), by or ())
    if as_json:
        for line in lines:
            print_json(line.plain())
    elif lines:
        print_comparison(lines, results())
    elif finished:
        results().print(f"None of the {len(finished)} finished runs in {folder} is all that was asked for.")
    else:
        results().print(f"There are no finished runs in {folder}.")
    complain(row.damage for row in every)


def existing_folder(given: Path) -> Path:
    """Return the folder of a store that is there."""
    folder = user_path(given)
    try:
        found = folder.is_dir()
    except OSError as error:
        raise StoreError(
            f"{culprit(folder, error)} could not be read: {error.strerror or error}. "
            + advice(error, "Make it readable.")
        ) from error
    if not found:
        raise StoreError(f"There is no folder {given}. `anchorhold-lab run` makes one; --store names another.")
    return folder


def existing_store(folder: Path) -> "Store":
    """Return a store that is there."""
    with loading():
        from anchorhold_lab.experiments import Store  # noqa: PLC0415

    return Store(existing_folder(folder))


def find_run(store: "Store", start: str) -> str:
    """Return the id that begins like this."""
    found = [name for name in store.ids() if name.startswith(start.lower())]
    if len(found) == 1:
        return found[0]
    if not found:
        raise ConfigurationError(
            f"No run in {store.folder} begins with {start!r}; `anchorhold-lab runs list` lists them."
        )
    raise ConfigurationError(f"{len(found)} runs begin with {start!r}: {', '.join(found)}. Give more of the id.")


def _figures(result: "Result") -> Table:
    shown = pairs()
    for name, value in result.metrics.items():
        shown.add_row(name.replace("_", " "), percent(value))
    if result.found_strength is not None:
        shown.add_row("strength found", f"{result.found_strength:.4g}")
    if result.worst_kl is not None:
        shown.add_row("lost at most", f"{result.worst_kl:.3g} nats a sample")
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


def _retention(result: "Result") -> Table:
    """Return what was lost of each task after each later one, in nats, and by which strength they were held."""
    named = [each.name for each in result.retention[-1].sets]
    columns = ["c", *(f"KL of {name}" for name in named), "worst loss then", "now"]
    shown = table("learned", *columns, right=tuple(columns))
    for noted in result.retention:
        if not noted.sets:
            continue
        kls = {each.name: f"{each.kl:.3g}" for each in noted.sets}
        worst = max(noted.sets, key=lambda each: each.kl)
        losses = (f"{loss:.3g}" if loss is not None else "-" for loss in (worst.loss_then, worst.loss_now))
        c = "-" if noted.strength is None else f"{noted.strength:.3g}"
        shown.add_row(f"task {noted.task + 1}", c, *(kls.get(name, "") for name in named), *losses)
    return shown
